package weirbench;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.concurrent.locks.LockSupport;

/**
 * A remote system with callbacks: it answers every call after the same delay, from one thread. Its calls come due in
 * the order they came in, so a list is all it needs. With a bound on the calls at once, it is a client that keeps the
 * calls beyond it in a queue of its own.
 */
final class Backend {
    /** Runs when the call is answered, on the backend's thread. */
    interface Callback {
        void answered();
    }

    private static final class Call {
        final Callback callback;
        long due;

        Call(Callback callback) {
            this.callback = callback;
        }
    }

    private final long delayNanos;
    private final int bound;
    private final Thread thread;
    private final ArrayDeque<Call> beyond = new ArrayDeque<>(); // guarded by this
    private ArrayList<Call> calls = new ArrayList<>(); // guarded by this
    private int running; // guarded by this
    private boolean closed; // guarded by this

    Backend(long delayNanos, int bound) {
        this.delayNanos = delayNanos;
        this.bound = bound == 0 ? Integer.MAX_VALUE : bound;
        thread = new Thread(this::run, "backend");
        thread.setDaemon(true);
        thread.start();
    }

    void call(Callback callback) {
        Call c = new Call(callback);
        boolean first = false;
        synchronized (this) {
            if (running < bound) {
                first = start(c);
            } else {
                beyond.add(c);
            }
        }
        if (first) {
            LockSupport.unpark(thread);
        }
    }

    private boolean start(Call c) {
        running++;
        c.due = System.nanoTime() + delayNanos;
        calls.add(c);
        return calls.size() == 1;
    }

    private synchronized void ended() {
        running--;
        Call next = beyond.poll();
        if (next != null) {
            start(next);
        }
    }

    synchronized void close() {
        closed = true;
        LockSupport.unpark(thread);
    }

    private void run() {
        ArrayList<Call> batch = new ArrayList<>();
        while (true) {
            synchronized (this) {
                ArrayList<Call> taken = calls;
                calls = batch;
                batch = taken;
                if (batch.isEmpty() && closed) {
                    return;
                }
            }
            if (batch.isEmpty()) {
                LockSupport.park(this);
                continue;
            }
            long now = System.nanoTime();
            for (Call c : batch) {
                while (c.due > now) {
                    LockSupport.parkNanos(this, c.due - now);
                    now = System.nanoTime();
                }
                if (bound != Integer.MAX_VALUE) {
                    ended();
                }
                c.callback.answered();
            }
            batch.clear();
        }
    }
}
