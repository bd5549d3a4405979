//go:build linux

// Package hostroot lays out the root file system of the image "host": this machine's programs
// and libraries, and the little of its configuration that an allow-list names.
package hostroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll/internal/userdb"
)

// The host's root file system is shown by an allow-list. No list could name
// every token, socket and database below "/", so sandboxes see only what is named
// here; the rest is empty directories.
var (
	// trees are shown as they are: the machine's programs and libraries.
	trees = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

	// hiddenParts are the parts of trees that are not shown, unless they are named
	// themselves: configuration, data and sources, which belong to the machine.
	hiddenParts = []string{"/usr/etc", "/usr/local/etc", "/usr/local/var", "/usr/src"}

	// hostEtc lists the configuration that programs need to start, find their libraries,
	// check certificates and print names. It contains no account data, keys or tokens.
	hostEtc = []string{
		"adduser.conf", "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
		"deluser.conf", "ethertypes", "fonts", "gai.conf", "host.conf", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime",
		"locale.alias", "locale.conf", "login.defs", "magic", "magic.mime", "mime.types", "netconfig", "networks", "nsswitch.conf", "os-release",
		"perl", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "profile", "protocols", "python3*", "redhat-release",
		"rpc", "services", "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "xattr.conf",
	}

	// hostJava lists the files shown of each java-* in hostEtcs: a runtime does not start
	// without some of them, and may have passwords under management.
	hostJava = []string{"*.cfg", "*.properties", "jfr", "management/management.properties", "psfont.properties.*", "security"}

	// hostEtcs are the directories that may contain hostEtc and hostJava.
	hostEtcs = []string{"/etc", "/usr/etc", "/usr/local/etc"}

	// emptyDirs exist, empty and writable as usual.
	emptyDirs = map[string]fs.FileMode{
		"dev": 0o755, "etc": 0o755, "home": 0o755, "media": 0o755, "mnt": 0o755, "opt": 0o755, "proc": 0o755, "root": 0o700, "run": 0o755,
		"srv": 0o755, "sys": 0o755, "tmp": 0o777 | fs.ModeSticky, "var": 0o755, "var/cache": 0o755, "var/lib": 0o755, "var/local": 0o755,
		"var/log": 0o755, "var/mail": 0o755, "var/opt": 0o755, "var/spool": 0o755, "var/tmp": 0o777 | fs.ModeSticky,
	}
)

// Options configure LayOut. Zero fields mean defaults.
type Options struct {
	// Extra lists more absolute paths to show, with all mounts below them. They must exist.
	Extra []string
	// IDMap is a user namespace. The host's files that are mounted, not copied, have owners of
	// that namespace: a file of user 0 belongs to the namespace's user 0. A path is shown with
	// its own owners if the kernel cannot map those of its mounts, as of an overlay. The tmpfs
	// and the copies in it belong to the caller. Default: no mapping. LayOut does not close the
	// file.
	IDMap *os.File
}

// LayOut lays out the host's root file system at dir, which becomes a small tmpfs with
// read-only bind mounts. It must run in a mount namespace of its own.
func LayOut(dir string, opts Options) error {
	mounts, err := MountPoints()
	if err != nil {
		return err
	}
	if err := MountTmpfs(dir); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for name, mode := range emptyDirs {
		if err := errors.Join(root.MkdirAll(name, 0o755), root.Chmod(name, mode)); err != nil {
			return err
		}
	}
	if err := root.Symlink("/run", "var/run"); err != nil {
		return err
	}
	var hidden []string
	for _, path := range hiddenParts {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			hidden = append(hidden, real)
		}
	}
	h := hostView{root: root, idMap: opts.IDMap, hidden: append(mounts, hidden...)}
	slices.Sort(h.hidden)
	if err := h.showAll(trees); err != nil {
		return err
	}
	for _, etc := range hostEtcs {
		if err := h.showEtc(etc); err != nil {
			return err
		}
	}
	if err := errors.Join(h.makePAM(), h.coverPackageManagers()); err != nil {
		return err
	}
	h.hidden, h.deep = hidden, true // the user asked for these paths with all mounts below them
	for _, path := range opts.Extra {
		if _, err := os.Lstat(path); err != nil {
			return err
		}
	}
	if err := h.showAll(opts.Extra); err != nil {
		return err
	}
	return writeAccounts(filepath.Join(dir, "etc"))
}

// A hostView is the host's root file system while it is being laid out. Files must be made
// through root: links are those of the host, and an absolute one would lead there.
type hostView struct {
	root   *os.Root
	hidden []string // paths below shown directories that are left empty; without links, parents first
	deep   bool     // directories are shown with the mounts below them
	idMap  *os.File // Options.IDMap
}

// showEtc shows the files of a directory that hostEtc and hostJava name.
func (h *hostView) showEtc(etc string) error {
	if real, err := filepath.EvalSymlinks(etc); err != nil || real != etc {
		return nil // it does not exist, or is a link, whose target is shown elsewhere if at all
	}
	if err := h.showMatches(etc, hostEtc); err != nil {
		return err
	}
	javas, err := filepath.Glob(etc + "/java-*")
	if err != nil {
		return err
	}
	for _, java := range javas {
		if err := h.showMatches(java, hostJava); err != nil {
			return err
		}
	}
	return nil
}

func (h *hostView) showMatches(dir string, patterns []string) error {
	for _, pattern := range patterns {
		found, err := filepath.Glob(dir + "/" + pattern)
		if err != nil {
			return err
		}
		if err := h.showAll(found); err != nil {
			return err
		}
	}
	return nil
}

func (h *hostView) showAll(paths []string) error {
	for _, path := range paths {
		if err := h.showPath(path); err != nil {
			return fmt.Errorf("show %s: %w", path, err)
		}
	}
	return nil
}

// showPath makes path visible: links are copied as links, small files as files, directories
// are mounted read-only. It leaves out what does not exist or the caller may not read.
func (h *hostView) showPath(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(path, "/")
	if err := h.root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(path)
		if err == nil {
			err = h.root.Symlink(to, name)
		}
		if errors.Is(err, fs.ErrExist) { // within a directory that is shown
			return nil
		}
		return err
	case info.IsDir():
		if err := h.root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		if err := h.bindReadOnly(path, filepath.Join(h.root.Name(), name), h.deep); err != nil {
			return err
		}
		return h.hideBelow(path)
	case info.Mode().IsRegular():
		return h.showFile(path, name, info)
	}
	return nil // sockets, pipes and devices are never shown
}

// showFile copies a small file, and mounts a large one, or one that replaces another.
func (h *hostView) showFile(path, name string, info fs.FileInfo) error {
	small := info.Size() <= 1<<20
	var data []byte
	if small {
		var err error
		if data, err = os.ReadFile(path); errors.Is(err, fs.ErrPermission) {
			return nil
		} else if err != nil {
			return err
		}
	}
	file, err := h.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err == nil {
		_, werr := file.Write(data)
		if err := errors.Join(werr, file.Close()); err != nil || small {
			return err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	return h.bindReadOnly(path, filepath.Join(h.root.Name(), name), false)
}

// hideBelow empties the hidden parts of a directory that was just shown.
func (h *hostView) hideBelow(path string) error {
	for _, hidden := range h.hidden {
		if !strings.HasPrefix(hidden, path+"/") {
			continue
		}
		if err := h.emptyPath(hidden[1:]); err != nil {
			return fmt.Errorf("hide %s: %w", hidden, err)
		}
	}
	return nil
}

// emptyPath covers a directory with an empty one, in which others can then be made, or a
// file with an empty file. It returns nil if there is nothing at name.
func (h *hostView) emptyPath(name string) error {
	info, err := h.root.Lstat(name)
	target := filepath.Join(h.root.Name(), name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return MountTmpfs(target)
	}
	const blank = "proc/.blank" // hidden below the mount of /proc; a deleted file could not be mounted again
	if err := h.root.WriteFile(blank, nil, 0o644); err != nil {
		return err
	}
	return h.bindReadOnly(filepath.Join(h.root.Name(), blank), target, false)
}

// writeAccounts writes passwd and group with the host's system accounts only: the names of
// its people are private.
func writeAccounts(etc string) error {
	files := map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\n",
		"group":  "root:x:0:\n",
	}
	for name := range files {
		data, err := os.ReadFile("/etc/" + name)
		if err == nil {
			files[name] = systemAccounts(name, data)
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// systemAccounts returns the lines of a passwd or group file whose id belongs to the system
// (below 1000, or nobody), without passwords, members, comments or foreign home
// directories.
func systemAccounts(name string, data []byte) string {
	var out strings.Builder
	fields := 7
	if name == "group" {
		fields = 4
	}
	for f := range userdb.Entries(data, fields) {
		id, err := strconv.Atoi(f[2])
		if err != nil || id >= 1000 && id != 65534 {
			continue
		}
		if name == "group" {
			fmt.Fprintf(&out, "%s:x:%d:\n", f[0], id)
			continue
		}
		home := "/nonexistent"
		if id == 0 {
			home = "/root"
		}
		fmt.Fprintf(&out, "%s:x:%d:%s:%s:%s:%s\n", f[0], id, f[3], f[0], home, f[6])
	}
	return out.String()
}
