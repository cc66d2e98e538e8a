package weirbench;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * One run: its specification, what is measured and what is checked. Functions and sinks go through the job's
 * serialization, so they find the run in a static field; there is one at a time.
 */
final class Run {
    static volatile Run current;

    final Spec spec;
    final byte[] seen;
    final byte[] calls; // of the function, by element; written by whoever runs the call
    final CompletableFuture<Void> allOut = new CompletableFuture<>();
    final Backend backend;
    final ExecutorService pool;
    final Parking parking; // null unless elements are parked for a retry

    private int count; // sink
    private long sum;
    private String bad;

    private long began, wall, cpu, gc;

    Run(Spec spec, Parking parking) {
        this.spec = spec;
        this.parking = parking;
        seen = new byte[spec.n];
        calls = new byte[spec.n];
        backend = spec.fn.equals("callback") || spec.fn.equals("cache") ? new Backend(spec.answerNanos, spec.calls) : null;
        pool = spec.fn.equals("pool") ? Executors.newFixedThreadPool(spec.threads) : null;
    }

    /** Begins the measured stretch: with the call of the function for the first element. */
    void begin() {
        cpu = cpuNanos();
        gc = gcMillis();
        began = System.nanoTime();
    }

    /** Takes one result, on the thread of the sink; ends the measured stretch with the last one. */
    void received(long v) {
        if (bad == null) {
            if (v < 0 || v >= seen.length) {
                bad = "element " + v + " was never sent";
            } else if (seen[(int) v]++ != 0) {
                bad = "element " + v + " came twice";
            } else if (spec.ordered && v != count) {
                bad = "element " + v + " came as number " + count;
            }
        }
        sum += v;
        if (++count == seen.length) {
            wall = System.nanoTime() - began;
            cpu = cpuNanos() - cpu;
            gc = gcMillis() - gc;
            allOut.complete(null);
        }
    }

    boolean done() {
        return count == seen.length;
    }

    void close() {
        if (backend != null) {
            backend.close();
        }
        if (pool != null) {
            pool.shutdown();
        }
    }

    void check() {
        long n = seen.length;
        if (bad == null && (count != n || sum != n * (n - 1) / 2)) {
            bad = count + " of " + n + " elements came out, sum " + sum;
        }
        for (int i = 0; bad == null && i < n; i++) {
            int want = spec.fail && failsFirst(i) || parking != null ? 2 : 1;
            if (calls[i] != want) {
                bad = "element " + i + ": " + calls[i] + " calls, want " + want;
            }
        }
        if (bad != null) {
            throw new IllegalStateException(bad);
        }
    }

    String json() {
        double n = seen.length;
        return "{\"Sample\":{\"ns/elem\":" + wall / n + ",\"cpu-ns/elem\":" + cpu / n + ",\"gc-ms\":" + gc
                + (parking == null ? "" : parking.json()) + "}}";
    }

    /** Exactly one in ten, at an irregular place in each block of ten; the Go side has the same rule. */
    static boolean failsFirst(int seq) {
        int block = seq / 10;
        return Integer.remainderUnsigned((block * 0x9E3779B1) >>> 16, 10) == seq % 10;
    }

    private static long cpuNanos() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static long gcMillis() {
        long ms = 0;
        for (GarbageCollectorMXBean b : ManagementFactory.getGarbageCollectorMXBeans()) {
            ms += Math.max(0, b.getCollectionTime());
        }
        return ms;
    }
}
