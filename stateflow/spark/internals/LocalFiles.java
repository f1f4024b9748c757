// Hadoop's local file system without processes: see local_files.py, which says why, and compiles this.
package stateflow;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFileAttributeView;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new Raw());
  }

  // Where a thread, and each that it starts, stands. Several driver processes share a JVM, each with a working folder of its own.
  private static final InheritableThreadLocal FOLDER = new InheritableThreadLocal();

  public static void workIn(String folder) {
    FOLDER.set(new org.apache.hadoop.fs.Path("file", null, folder));
  }

  public static class Raw extends RawLocalFileSystem {
    public org.apache.hadoop.fs.Path getWorkingDirectory() {
      Object folder = FOLDER.get();
      return folder == null ? super.getWorkingDirectory() : (org.apache.hadoop.fs.Path) folder;
    }

    public void setPermission(org.apache.hadoop.fs.Path path, FsPermission permission) throws IOException {
      int mode = permission.toShort();
      Path file = pathToFile(path).toPath();
      // Java knows nothing of the sticky bit.
      if (mode > 0777 || Files.getFileAttributeView(file, PosixFileAttributeView.class) == null) {
        super.setPermission(path, permission);
        return;
      }
      PosixFilePermission[] all = PosixFilePermission.values();
      Set permissions = EnumSet.noneOf(PosixFilePermission.class);
      for (int bit = 0; bit < all.length; bit++) {
        // In Java's order: owner, group and others, each may read, write, execute.
        if ((mode & (0400 >> bit)) != 0) {
          permissions.add(all[bit]);
        }
      }
      Files.setPosixFilePermissions(file, permissions);
    }

    public FileStatus getFileLinkStatus(org.apache.hadoop.fs.Path path) throws IOException {
      // Of the same text as Hadoop gives to `readlink`.
      return Files.isSymbolicLink(new File(path.toString()).toPath()) ? super.getFileLinkStatus(path) : getFileStatus(path);
    }
  }

  public static class Context extends ChecksumFs {
    public Context(URI uri, Configuration conf) throws IOException, URISyntaxException {
      super(new RawContext(conf));
    }
  }

  public static class RawContext extends DelegateToFileSystem {
    RawContext(Configuration conf) throws IOException, URISyntaxException {
      super(FsConstants.LOCAL_FS_URI, new Raw(), conf, FsConstants.LOCAL_FS_URI.getScheme(), false);
    }

    public int getUriDefaultPort() {
      return -1;
    }

    public FsServerDefaults getServerDefaults(org.apache.hadoop.fs.Path path) throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    public FsServerDefaults getServerDefaults() throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    public boolean isValidName(String name) {
      return true;
    }
  }
}
