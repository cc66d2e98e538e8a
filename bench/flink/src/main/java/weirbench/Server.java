package weirbench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.concurrent.Semaphore;

/** Reads specifications, one a line, runs them one after the other and prints a line of JSON for each. */
public final class Server {
    private Server() {}

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // what Flink prints is no answer
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = one(line);
            } catch (Throwable t) {
                t.printStackTrace();
                answer = "{\"Error\":\"" + String.valueOf(t).replaceAll("[\"\\\\\\s]+", " ") + "\"}";
            }
            out.println(answer);
            out.flush();
        }
        JobDriver.close();
        System.exit(0);
    }

    private static String one(String line) throws Exception {
        Spec spec = new Spec(line);
        Parking parking = spec.fn.equals("park") ? new Parking(spec.n, spec.baseMillis, spec.spreadMillis) : null;
        Run run = new Run(spec, parking);
        Run.current = run;
        try {
            System.gc();
            Thread weigher = null;
            Throwable[] late = new Throwable[1];
            if (parking != null) {
                weigher = new Thread(() -> {
                    try {
                        parking.weigh();
                    } catch (Throwable t) {
                        late[0] = t;
                    }
                });
                weigher.start();
            }
            try {
                switch (spec.driver) {
                    case "op":
                        OperatorDriver.run(run);
                        break;
                    case "job":
                    case "unchained":
                        JobDriver.run(run);
                        break;
                    case "floor":
                        floor(run);
                        break;
                    default:
                        throw new IllegalArgumentException(spec.driver);
                }
            } finally {
                if (parking != null) {
                    parking.failed = true;
                    weigher.join();
                }
            }
            if (late[0] != null) {
                throw new IllegalStateException(late[0]);
            }
            if (!spec.driver.equals("floor")) {
                run.check();
            }
            return run.json();
        } finally {
            run.close();
            Run.current = null;
        }
    }

    /** What the backend alone allows: a semaphore with as many permits as slots, and no operator. */
    private static void floor(Run run) throws Exception {
        Semaphore permits = new Semaphore(run.spec.capacity);
        run.begin();
        for (long i = 0; i < run.spec.n; i++) {
            long seq = i;
            permits.acquire();
            run.backend.call(() -> {
                run.received(seq);
                permits.release();
            });
        }
        run.allOut.join();
    }
}
