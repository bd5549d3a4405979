package wsl2

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// A distro is the WSL distribution of a machine: one of its own, or the one of a Home.
type distro struct {
	name string
	dir  string // of the machine, or the Home
	home bool
}

// The files in the directory of a distribution.
const (
	diskDir  = "wsl" // WSL's directory for the disk
	diskName = "ext4.vhdx"
	rootName = "wsl.root" // of a Home: the sum of the root archive that is completely on the disk
	lockName = "wsl.lock" // of a Home: locked by its user
)

// distroOf returns the distribution of a machine.
func distroOf(h *vm.Hardware) distro {
	if h.Home == "" {
		return distro{name: distroPrefix + h.ID, dir: h.Dir}
	}
	return distroAt(h.Home)
}

// distroAt returns the distribution of a Home. Its name depends on the Home's path, so that two
// Homes of a user have different names.
func distroAt(home string) distro {
	home = filepath.Clean(home)
	key := home
	if runtime.GOOS == "windows" { // paths there ignore case
		key = strings.ToLower(home)
	}
	sum := sha256.Sum256([]byte(key))
	return distro{name: distroPrefix + "home-" + hex.EncodeToString(sum[:8]), dir: home, home: true}
}

// acquireHome creates the directory of a Home if it is missing, and locks it until the caller
// releases the lock. Kinds: ErrConflict.
func (d distro) acquireHome() (*fsutil.Lock, error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, err
	}
	return d.lockHome()
}

func (d distro) lockHome() (*fsutil.Lock, error) {
	lock, err := fsutil.TryLock(filepath.Join(d.dir, lockName))
	if errors.Is(err, fsutil.ErrLocked) {
		return nil, atoll.Errorf("", "", atoll.ErrConflict, "home %s: in use by another machine", d.dir)
	}
	return lock, err
}

// prepareDistro makes the distribution exist, not running, with the files of the archive. If it
// exists with another archive, its guest unpacks the new one.
func (d distro) prepareDistro(ctx context.Context, w wsl, archive, guest string) error {
	if !d.home {
		if err := d.removeDistro(ctx, w); err != nil { // left by a machine that was not killed
			return err
		}
		return d.importArchive(ctx, w, archive)
	}
	want, err := sumOf(archive)
	if err != nil {
		return atoll.E("", "", atoll.ErrInvalid, err)
	}
	has, err := d.loadedSum()
	if err == nil {
		err = d.ensureRegistered(ctx, w, has != "")
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = d.recreateDistro(ctx, w, archive)
	case err == nil && has == want:
		return nil
	case err == nil:
		err = d.updateFiles(ctx, w, archive, guest)
	}
	if err != nil {
		return err
	}
	return fsutil.WriteFile(d.filePath(rootName), []byte(want))
}

func (d distro) filePath(name string) string { return filepath.Join(d.dir, name) }

// loadedSum returns the sum of the archive on the disk of a Home, "" if no import has finished.
func (d distro) loadedSum() (string, error) {
	text, err := fsutil.ReadFile(d.filePath(rootName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

// ensureRegistered makes WSL know the distribution of a Home, not running, also if the disk exists
// but WSL has forgotten it. It returns fs.ErrNotExist if there is no distribution or it is
// incomplete.
func (d distro) ensureRegistered(ctx context.Context, w wsl, complete bool) error {
	if !complete {
		return fs.ErrNotExist
	}
	there, err := d.isRegistered(ctx, w)
	if err != nil {
		return err
	}
	if there {
		return d.terminatePrograms(ctx, w) // a host that died may have left it running
	}
	path := filepath.Join(d.filePath(diskDir), diskName)
	if _, err := os.Stat(path); err != nil {
		return err
	}
	_, err = w.runWSL(ctx, nil, "--import-in-place", d.name, path)
	return err
}

// recreateDistro creates the distribution of a Home from scratch.
func (d distro) recreateDistro(ctx context.Context, w wsl, archive string) error {
	if err := os.Remove(d.filePath(rootName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := d.removeDistro(ctx, w); err != nil {
		return err
	}
	return d.importArchive(ctx, w, archive)
}

// importArchive creates the distribution from a root archive.
func (d distro) importArchive(ctx context.Context, w wsl, archive string) error {
	return runWithArchive(ctx, w, archive, "--import", d.name, d.filePath(diskDir), "-", "--version", "2")
}

// updateFiles writes the files of a root archive over the existing ones.
func (d distro) updateFiles(ctx context.Context, w wsl, archive, guest string) error {
	err := runWithArchive(ctx, w, archive, d.execArgs(guest, "unpack")...)
	return errors.Join(err, d.terminatePrograms(ctx, w)) // WSL reads its configuration when it starts
}

// execArgs returns the arguments of wsl.exe to execute a program in the distribution.
func (d distro) execArgs(program ...string) []string {
	return append([]string{"--distribution", d.name, "--user", "root", "--cd", "/", "--exec"}, program...)
}

// runWithArchive runs wsl.exe with a root archive on its stdin.
func runWithArchive(ctx context.Context, w wsl, path string, args ...string) error {
	archive, err := os.Open(path)
	if err != nil {
		return atoll.E("", "", atoll.ErrInvalid, err)
	}
	defer archive.Close()
	r, to := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := writeRoot(to, archive)
		written <- err
		to.CloseWithError(err)
	}()
	_, err = w.runWSL(ctx, r, args...)
	r.Close()
	if wrong := <-written; wrong != nil && !errors.Is(wrong, io.ErrClosedPipe) && ctx.Err() == nil {
		return atoll.Errorf("", "", atoll.ErrInvalid, "%s: %w", path, wrong)
	}
	return err
}

// endDistro ends all programs in the distribution. It removes the distribution if that has no Home
// or its Home is incomplete.
func (d distro) endDistro(ctx context.Context, w wsl) error {
	has := ""
	if d.home {
		var err error
		if has, err = d.loadedSum(); err != nil {
			return err
		}
	}
	if has == "" {
		return d.removeDistro(ctx, w)
	}
	return d.terminatePrograms(ctx, w)
}

// removeDistro removes the distribution and its disk, if they exist.
func (d distro) removeDistro(ctx context.Context, w wsl) error {
	there, err := d.isRegistered(ctx, w)
	if err != nil {
		return err
	}
	if there {
		if err := d.terminatePrograms(ctx, w); err != nil {
			return err
		}
		if _, err := w.runWSL(ctx, nil, "--unregister", d.name); err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
			return err
		}
	}
	return os.RemoveAll(d.filePath(diskDir))
}

// terminatePrograms ends all programs in the distribution.
func (d distro) terminatePrograms(ctx context.Context, w wsl) error {
	_, err := w.runWSL(ctx, nil, "--terminate", d.name)
	if err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
		return err
	}
	return nil
}

// isRegistered reports whether WSL knows the distribution. A WSL without any distribution reports
// that as an error.
func (d distro) isRegistered(ctx context.Context, w wsl) (bool, error) {
	text, err := w.runWSL(ctx, nil, "--list", "--quiet", "--all")
	if kind := atoll.KindOf(err); err != nil && kind != atoll.ErrInternal {
		return false, err
	}
	if err != nil {
		// An error without a code is that one, in the user's language.
		if strings.Contains(err.Error(), "Wsl/") && !strings.Contains(err.Error(), "WSL_E_DEFAULT_DISTRO_NOT_FOUND") {
			return false, err
		}
		return false, nil
	}
	return slices.ContainsFunc(strings.Split(text, "\n"), func(name string) bool {
		return strings.EqualFold(strings.TrimSpace(name), d.name)
	}), nil
}

// sumOf returns a hash of the sources of a root file system: an archive, and this package's own
// file.
func sumOf(archive string) (string, error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	_, _ = io.WriteString(sum, wslConf) // never fails
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("%s: %w", archive, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Forget implements vm.Homer.
func (d *Driver) Forget(ctx context.Context, home string) error {
	if !filepath.IsAbs(home) {
		return atoll.Errorf("forget", "", atoll.ErrInvalid, "home %q: must be absolute", home)
	}
	if !d.isSupported() {
		return atoll.Errorf("forget", "", atoll.ErrUnsupported, "%s", unsupportedReason())
	}
	if err := d.forgetHome(ctx, distroAt(home)); err != nil {
		return atoll.E("forget", "", atoll.KindOf(err), err)
	}
	return nil
}

// forgetHome removes the distribution of a Home.
func (d *Driver) forgetHome(ctx context.Context, root distro) error {
	lock, err := root.lockHome()
	gone := errors.Is(err, fs.ErrNotExist) // the directory was removed, but WSL may still know the distribution
	if err != nil && !gone {
		return err
	}
	defer lock.Release()
	w, err := d.findWSL()
	if gone && err != nil {
		return nil // without WSL there is no distribution
	}
	if err == nil {
		err = root.removeDistro(ctx, w)
	}
	if err != nil || gone {
		return err
	}
	if err := os.Remove(root.filePath(rootName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := lock.Remove(); err != nil {
		return err
	}
	_ = os.Remove(root.dir) // fails if it has files of others, which stay
	return nil
}

var _ vm.Homer = (*Driver)(nil)
