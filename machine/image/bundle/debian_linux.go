package bundle

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// tools maps the programs that builds need to the Debian packages that contain them.
var tools = map[string]string{"sqfstar": "squashfs-tools", "mmdebstrap": "mmdebstrap"}

// neededTools returns the programs that a build of r needs, without the formatter.
func neededTools(r Recipe) []string {
	var need []string
	if !r.Archive {
		need = append(need, "sqfstar")
	}
	if r.Image == "" {
		need = append(need, "mmdebstrap")
	}
	return need
}

// MissingPackages returns the Debian packages of the programs that a build of r needs and this machine lacks.
func MissingPackages(r Recipe) []string {
	var packages []string
	for _, name := range neededTools(r) {
		if _, err := exec.LookPath(name); err != nil {
			packages = append(packages, tools[name])
		}
	}
	if _, err := FindFormatter(); err != nil && !r.Archive {
		packages = append(packages, FormatterPackage)
	}
	return packages
}

// checkTools returns an error if a tool that r needs is missing.
func checkTools(r Recipe) error {
	for _, name := range neededTools(r) {
		if _, err := exec.LookPath(name); err != nil {
			return vm.MissingProgram("build", r.Name, "%s is not installed: apt-get install %s", name, tools[name])
		}
	}
	if r.Archive {
		return nil
	}
	if _, err := FindFormatter(); err != nil {
		return err
	}
	if r.Kernel != "" {
		return nil
	}
	for _, name := range []string{"apt-cache", "apt-get"} {
		if _, err := exec.LookPath(name); err != nil {
			return vm.MissingProgram("build", r.Name,
				"%s, which fetches the kernel, is not installed: use --kernel with a file such as those of https://packages.debian.org/%s", name, KernelPackage+debianArch())
		}
	}
	return nil
}

func debianArch() string { return runtime.GOARCH } // Go's and Debian's names are the same for architectures with cloud kernels

var (
	dependsForm = lazyRegexp(`(linux-image-[a-z0-9][a-z0-9.+-]*)(?: \(= ([A-Za-z0-9.+:~-]+)\))?`)
	versionForm = lazyRegexp(`^[A-Za-z0-9.+:~-]+$`)
)

// newestKernel returns the package with Debian's newest kernel, as "name=version".
func newestKernel(ctx context.Context) (string, error) {
	meta := KernelPackage + debianArch()
	out, err := runProgram(ctx, "", "apt-cache", "show", "--no-all-versions", meta)
	if err != nil {
		return "", atoll.Errorf("build", meta, atoll.ErrUnavailable, "apt has no such package: run apt-get update, or use --kernel: %w", err)
	}
	fields := parseParagraph(out)
	m := dependsForm().FindStringSubmatch(fields["Depends"])
	if m == nil {
		return "", atoll.Errorf("build", meta, atoll.ErrUnavailable, "the package depends on %q, which is not a kernel: use --kernel", fields["Depends"])
	}
	version := m[2]
	if version == "" {
		version = fields["Version"]
	}
	if !versionForm().MatchString(version) {
		return "", atoll.Errorf("build", meta, atoll.ErrUnavailable, "the package has the invalid version %q: use --kernel", version)
	}
	return m[1] + "=" + version, nil
}

// parseParagraph returns the fields of a paragraph in Debian's format, without
// continuation lines.
func parseParagraph(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" {
			break
		}
		if key, value, ok := strings.Cut(line, ": "); ok && key != "" && key[0] != ' ' {
			fields[key] = value
		}
	}
	return fields
}

// downloadPackage fetches a package into a directory below dir, and returns the path of
// the file. apt verifies it.
func downloadPackage(ctx context.Context, dir, pkg string) (string, error) {
	dir = filepath.Join(dir, "download")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	// As root, apt would download as another user, which cannot write to our directories.
	if _, err := runProgram(ctx, dir, "apt-get", "download", "-q", "-o", "APT::Sandbox::User=", pkg); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			return "", err
		}
		return "", atoll.Errorf("build", pkg, atoll.ErrUnavailable, "apt cannot fetch the package: run apt-get update, or use --kernel: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) != 1 {
		return "", atoll.Errorf("build", pkg, atoll.ErrInternal, "apt-get download left %d packages", len(files))
	}
	return files[0], nil
}

// runProgram runs a program to its end, and returns its output.
func runProgram(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := newCommand(ctx, name, args...)
	cmd.Dir = dir
	var out bytes.Buffer
	var said tail
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if said.isDiskFull() {
			return "", fmt.Errorf("%s: %w", name, syscall.ENOSPC)
		}
		return "", fmt.Errorf("%s: %w: %s", name, err, said.String())
	}
	return out.String(), nil
}

// excludedPaths lists files that dpkg does not install: nobody reads them in a machine
// for programs.
var excludedPaths = []string{"/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/doc/*"}

// installDebian installs the packages of r, writes the system to a disk with init in it,
// and returns all installed packages. temp is a directory for temporary files.
func installDebian(ctx context.Context, temp string, r Recipe, init []byte, to diskWriter, m *meter) (installed []string, err error) {
	args := []string{"--variant=apt", "--format=tar", "--components=main", "--include=" + strings.Join(r.Packages, ",")}
	for _, e := range excludedPaths {
		args = append(args, "--dpkgopt=path-exclude="+e)
	}
	args = append(args, "--dpkgopt=path-include=/usr/share/doc/*/copyright", r.Suite, "-")
	if r.Mirror != "" {
		args = append(args, r.Mirror)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := newCommand(ctx, "mmdebstrap", args...)
	if os.Geteuid() == 0 {
		cmd.Env = append(cmd.Env, "TMPDIR="+temp)          // only for root: in a user namespace mmdebstrap could not enter the directory
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS // the kernel removes its mounts, however it ends
	} else { // it must remove its own directory, whose files belong to other users
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
		cmd.WaitDelay = 20 * time.Second
	}
	var said tail
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	installed, err = copyDebian(ctx, out, init, to, m)
	if err == nil {
		_, err = io.Copy(io.Discard, out) // the padding of the stream
	}
	if err != nil {
		cancel()
	}
	if waited := cmd.Wait(); waited != nil && (err == nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(*damageError))) {
		if said.isDiskFull() {
			return nil, fmt.Errorf("mmdebstrap: %w", syscall.ENOSPC)
		}
		if os.Geteuid() != 0 && bytes.Contains(said.buf, []byte("chroot mode")) {
			return nil, atoll.Errorf("build", r.Name, atoll.ErrUnavailable,
				"mmdebstrap cannot run as an ordinary user here: apt-get install uidmap and add ranges to /etc/subuid and /etc/subgid, or build as root: %s", said.String())
		}
		return nil, atoll.Errorf("build", r.Name, atoll.ErrUnavailable, "mmdebstrap: %w: %s", waited, said.String())
	}
	return installed, err
}

// copyDebian copies a system's files, without those that depend on the place and time of
// the build, adds init, and returns the installed packages.
func copyDebian(ctx context.Context, r io.Reader, init []byte, to diskWriter, m *meter) (installed []string, err error) {
	seen := map[string]bool{}
	err = readTar(ctx, r, func(hdr *tar.Header, r io.Reader) error {
		name := path.Clean("/" + hdr.Name)
		if isExcluded(name, hdr.Typeflag) {
			return nil
		}
		seen[name] = true
		if hdr.ModTime.After(epoch) {
			hdr.ModTime = epoch
		}
		hdr.ModTime = hdr.ModTime.Truncate(time.Second)
		hdr.AccessTime, hdr.ChangeTime, hdr.Uname, hdr.Gname, hdr.Format = time.Time{}, time.Time{}, "", "", tar.FormatPAX
		if err := to.WriteHeader(hdr); err != nil {
			return err
		}
		w := io.MultiWriter(to, m)
		if name != "/var/lib/dpkg/status" {
			_, err := io.Copy(w, r)
			return err
		}
		var status bytes.Buffer
		if _, err := io.Copy(io.MultiWriter(w, &status), r); err != nil {
			return err
		}
		installed = packagesOf(&status)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if installed == nil {
		return nil, newDamageError(nil, "the installed system is not a Debian: it has no /var/lib/dpkg/status")
	}
	if init == nil {
		return installed, nil
	}
	for _, d := range []string{path.Dir(vm.InitFile), "/var/lib/docker"} {
		if !seen[d] {
			if err := to.addFile(&tar.Header{Typeflag: tar.TypeDir, Name: "." + d + "/", Mode: 0o755, Format: tar.FormatPAX}, nil); err != nil {
				return nil, err
			}
		}
	}
	return installed, to.addFile(&tar.Header{Typeflag: tar.TypeReg, Name: "." + vm.InitFile, Mode: 0o644, Format: tar.FormatPAX}, init)
}

// isExcluded reports whether copyDebian omits a file: a device, which the guest creates
// itself, a file with settings of this machine, a log or a cache.
func isExcluded(name string, kind byte) bool {
	if strings.HasPrefix(name, "/dev/") {
		return true
	}
	if kind != tar.TypeReg {
		return false
	}
	for _, dir := range []string{"/var/cache/apt/", "/var/lib/apt/lists/", "/var/log/"} {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	return slices.Contains([]string{
		"/etc/hostname", "/etc/resolv.conf", "/var/cache/ldconfig/aux-cache", "/var/lib/dpkg/status-old", "/var/cache/debconf/config.dat-old",
		"/var/cache/debconf/templates.dat-old",
	}, name)
}

// packagesOf returns the installed packages from dpkg's status file, sorted.
func packagesOf(status io.Reader) (list []string) {
	s := bufio.NewScanner(status)
	s.Buffer(nil, 1<<20)
	fields := map[string]string{}
	end := func() {
		if fields["Status"] == "install ok installed" {
			list = append(list, fields["Package"]+"="+fields["Version"])
		}
		clear(fields)
	}
	for s.Scan() {
		line := s.Text()
		if line == "" {
			end()
		} else if key, value, ok := strings.Cut(line, ": "); ok && line[0] != ' ' {
			fields[key] = value
		}
	}
	end()
	slices.Sort(list)
	return list
}
