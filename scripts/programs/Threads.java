import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/** Uses malloc as Java programs do: by the virtual machine, direct buffers, zlib and threads. */
public class Threads {
    static long build(int seed, int rounds) throws Exception {
        CRC32 sum = new CRC32();
        for (int round = 0; round < rounds; round++) {
            List<ByteBuffer> buffers = new ArrayList<>();
            for (int nth = 0; nth < 30; nth++) {
                ByteBuffer buffer = ByteBuffer.allocateDirect(1000 * (1 + nth * 37 % 200));
                while (buffer.hasRemaining()) buffer.put((byte) (seed + nth + round));
                buffers.add(buffer.flip());
            }
            for (ByteBuffer buffer : buffers) {
                byte[] bytes = new byte[buffer.remaining()];
                buffer.get(bytes);
                sum.update(packedAndBack(bytes));
            }
        }
        return sum.getValue();
    }

    static byte[] packedAndBack(byte[] bytes) throws Exception {
        Deflater deflater = new Deflater(1);
        deflater.setInput(bytes);
        deflater.finish();
        byte[] packed = new byte[bytes.length + 100];
        int length = deflater.deflate(packed);
        deflater.end();
        Inflater inflater = new Inflater();
        inflater.setInput(packed, 0, length);
        byte[] back = new byte[bytes.length];
        inflater.inflate(back);
        inflater.end();
        return back;
    }

    public static void main(String[] args) throws Exception {
        int scale = args.length > 0 ? Integer.parseInt(args[0]) : 1;
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Long>> all = new ArrayList<>();
        for (int nth = 0; nth < 8; nth++) {
            int seed = nth;
            all.add(pool.submit((Callable<Long>) () -> build(seed, 3 * scale)));
        }
        for (Future<Long> one : all) System.out.println("thread " + one.get());
        pool.shutdown();
        for (int nth = 0; nth < 50 * scale; nth++) {
            Thread shortLived = new Thread(() -> new ByteArrayOutputStream(5000));
            shortLived.start();
            shortLived.join();
        }
        Process child = new ProcessBuilder("sh", "-c", "echo 7 | tr 0-9 a-j").start();
        System.out.print("said " + new String(child.getInputStream().readAllBytes()));
        System.out.println("child " + child.waitFor());
    }
}
