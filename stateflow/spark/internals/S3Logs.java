// Delta's log of tables on S3, for several drivers: see s3_logs.py, which says why, and compiles this.
package stateflow;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

public class S3Logs extends S3SingleDriverLogStore {
  private static final String CONDITION = "fs.option.create.conditional.overwrite";
  private static final int ATTEMPTS = 6;

  public S3Logs(Configuration conf) {
    super(conf);
  }

  public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf) throws IOException {
    if (overwrite.booleanValue()) {
      super.write(path, actions, overwrite, conf);
      return;
    }
    ByteArrayOutputStream body = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      body.write(((String) actions.next() + "\n").getBytes("UTF-8"));
    }
    if (!create(path.getFileSystem(conf), path, body.toByteArray())) {
      throw new java.nio.file.FileAlreadyExistsException(path.toString());
    }
  }

  // Whether the file has this content now. A client that sends a request again, because it has not heard the answer, meets its own
  // file: so the content decides whose file it is. Delta puts an id of its own into every commit.
  public static boolean create(FileSystem files, Path path, byte[] body) throws IOException {
    for (int attempt = 1; ; attempt++) {
      try {
        FSDataOutputStreamBuilder file = files.createFile(path).create().overwrite(false);
        // "must": a Hadoop that does not know the condition refuses it, instead of overwriting the file.
        file.must(CONDITION, true);
        FSDataOutputStream out = (FSDataOutputStream) file.build();
        out.write(body);
        out.close();
        return true;
      } catch (IOException error) {
        byte[] found = head(files, path, body.length + 1);
        if (found != null) {
          return Arrays.equals(found, body);
        }
        // S3 answers 409, and stores nothing, when it would have to wait for another request about the same file.
        if (attempt == ATTEMPTS || String.valueOf(error.getMessage()).indexOf("Status Code: 409") < 0) {
          throw error;
        }
        pause(50L << attempt);
      }
    }
  }

  // Up to so many bytes of a file; null if there is none.
  public static byte[] head(FileSystem files, Path path, int most) throws IOException {
    InputStream in = null;
    try {
      in = files.open(path);
      return in.readNBytes(most);
    } catch (FileNotFoundException error) {
      return null;
    } finally {
      if (in != null) {
        in.close();
      }
    }
  }

  private static void pause(long milliseconds) throws IOException {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException error) {
      throw new InterruptedIOException(error.getMessage());
    }
  }
}
