import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Random;

/**
 * Prints `ready`. Does as many rounds of work as each line of input says, and prints the nanoseconds of
 * processor time that all threads of the process needed. Ends with its input.
 */
public final class Started {
    private static final int ENTRIES = 150_000;
    private static final int LOOK_UPS = 1_500_000;

    public static void main(String[] words) throws Exception {
        System.out.println("ready");
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            long before = processorTime();
            long sum = 0;
            for (int round = Integer.parseInt(line); round > 0; round--) {
                sum += work(round);
            }
            System.out.println((processorTime() - before) + " " + sum);
        }
    }

    private static long processorTime() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static long work(int seed) {
        var random = new Random(seed);
        var map = new HashMap<Integer, long[]>();
        for (int key = 0; key < ENTRIES; key++) {
            map.put(key, new long[] {random.nextLong(), key, seed});
        }
        long sum = 0;
        for (int nth = 0; nth < LOOK_UPS; nth++) {
            sum += map.get(random.nextInt(ENTRIES))[nth % 3];
        }
        return sum;
    }
}
