package weirbench;

import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.Optional;
import java.util.function.Predicate;
import org.apache.flink.streaming.api.functions.async.AsyncRetryPredicate;
import org.apache.flink.streaming.api.functions.async.AsyncRetryStrategy;
import org.apache.flink.streaming.api.functions.async.ResultFuture;

/**
 * All elements fail at first and wait for their retry at the same time; due times are spread evenly, in an order that
 * has nothing to do with the order of arrival. Measures live heap per element, and how late the retries come.
 */
final class Parking {
    final long baseMillis, spreadMillis;
    final long[] due, late;
    private final Failed[] failures;
    volatile int parked;
    volatile boolean failed;
    private long before;
    private long firstCall;
    private double bytes;
    private double parkNanos;

    Parking(int n, long baseMillis, long spreadMillis) {
        this.baseMillis = baseMillis;
        this.spreadMillis = spreadMillis;
        due = new long[n];
        late = new long[n];
        failures = new Failed[n];
        for (int i = 0; i < n; i++) {
            failures[i] = new Failed(i);
        }
    }

    /** Weighs what is there before; called on the task's thread with the first element. */
    void begin() {
        before = liveBytes();
        firstCall = System.nanoTime();
    }

    /** Waits until all are parked and weighs them; called on another thread. */
    void weigh() throws InterruptedException {
        while (parked < due.length && !failed) {
            Thread.sleep(1);
        }
        parkNanos = (System.nanoTime() - firstCall) / (double) due.length;
        Thread.sleep(50); // for what is between the strategy's answer and the timer's registration
        bytes = (liveBytes() - before) / (double) due.length;
        if (System.nanoTime() - firstCall > baseMillis * 1_000_000L) {
            throw new IllegalStateException("parking and weighing took too long");
        }
    }

    String json() {
        long[] l = late.clone();
        Arrays.sort(l);
        return ",\"live-B/elem\":" + bytes + ",\"park-ns/elem\":" + parkNanos
                + ",\"late-p50-ms\":" + l[l.length / 2] / 1e6 + ",\"late-p99-ms\":" + l[(int) (l.length * 0.99)] / 1e6
                + ",\"late-max-ms\":" + l[l.length - 1] / 1e6 + ",\"early-max-ms\":" + Math.max(0, -l[0] / 1e6);
    }

    private static long liveBytes() {
        System.gc();
        System.gc();
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    }

    /** Names its element; no stack trace. */
    static final class Failed extends RuntimeException {
        final int seq;

        Failed(int seq) {
            super("not ready yet", null, false, false);
            this.seq = seq;
        }
    }

    static final class Function extends Work.Base {
        @Override
        public void asyncInvoke(Long in, ResultFuture<Long> result) {
            int seq = in.intValue();
            Parking p = run.parking;
            if (run.calls[seq]++ == 0) {
                if (seq == 0) {
                    p.begin();
                    run.begin();
                }
                result.completeExceptionally(p.failures[seq]);
                return;
            }
            p.late[seq] = System.nanoTime() - p.due[seq];
            result.complete(Collections.singleton(in));
        }
    }

    /** Flink asks it about one element after the other, on the task's thread, right after its predicate. */
    static final class Strategy implements AsyncRetryStrategy<Long>, AsyncRetryPredicate<Long> {
        private int last;

        @Override
        public boolean canRetry(int attempts) {
            return attempts <= Work.MAX_RETRIES;
        }

        @Override
        public long getBackoffTimeMillis(int attempts) {
            Parking p = Run.current.parking;
            int n = p.due.length;
            long place = last * 2654435761L % n;
            long now = System.nanoTime();
            long wait = p.firstCall + p.baseMillis * 1_000_000L + place * (p.spreadMillis * 1_000_000L / n) - now;
            long millis = Math.max(0, wait / 1_000_000L);
            p.due[last] = now + millis * 1_000_000L;
            p.parked++;
            return millis;
        }

        @Override
        public AsyncRetryPredicate<Long> getRetryPredicate() {
            return this;
        }

        @Override
        public Optional<Predicate<Collection<Long>>> resultPredicate() {
            return Optional.empty();
        }

        @Override
        public Optional<Predicate<Throwable>> exceptionPredicate() {
            return Optional.of(t -> {
                last = ((Failed) t).seq;
                return true;
            });
        }
    }
}
