package weirbench;

import java.util.HashMap;
import java.util.Map;

/** What one run does, read from "key=value key=value …". The Go side writes these lines. */
final class Spec {
    final String driver; // op, job, unchained, floor
    final String fn; // inline, pool, callback, cache, park
    final boolean ordered;
    final boolean armed; // timeout and retry strategy
    final boolean fail; // one element in ten fails at first
    final int n;
    final int capacity;
    final int calls; // bound on the calls that run at once; 0: none but the capacity
    final int threads; // of fn=pool
    final long answerNanos; // of fn=callback and cache
    final long delayMillis; // of a retry
    final long timeoutMillis;
    final long baseMillis; // of fn=park: how long the first element waits for its retry
    final long spreadMillis; // of fn=park: over how long the others follow

    Spec(String line) {
        Map<String, String> m = new HashMap<>();
        for (String part : line.trim().split("\\s+")) {
            int eq = part.indexOf('=');
            m.put(part.substring(0, eq), part.substring(eq + 1));
        }
        driver = m.get("driver");
        fn = m.get("fn");
        ordered = "ordered".equals(m.get("mode"));
        armed = "true".equals(m.get("armed"));
        fail = "true".equals(m.get("fail"));
        n = Integer.parseInt(m.get("n"));
        capacity = Integer.parseInt(m.get("capacity"));
        calls = Integer.parseInt(m.get("calls"));
        threads = Integer.parseInt(m.get("threads"));
        answerNanos = 1000L * Integer.parseInt(m.get("answer_us"));
        delayMillis = Integer.parseInt(m.get("delay_ms"));
        timeoutMillis = Integer.parseInt(m.get("timeout_ms"));
        baseMillis = Integer.parseInt(m.getOrDefault("base_ms", "0"));
        spreadMillis = Integer.parseInt(m.getOrDefault("spread_ms", "0"));
    }
}
