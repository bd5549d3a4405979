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

// A distro is the distribution of a machine: of its own, or the one of a Home.
type distro struct {
	name string
	dir  string // of the machine, or the Home
	home bool
}

// What is in the directory of a distribution.
const (
	diskDir  = "wsl" // where WSL has its disk
	diskName = "ext4.vhdx"
	rootName = "wsl.root" // of a Home: which root archive is on the disk, all of it
	lockName = "wsl.lock" // of a Home: who has it
)

// distroOf is that of a machine.
func distroOf(h *vm.Hardware) distro {
	if h.Home == "" {
		return distro{name: prefix + h.ID, dir: h.Dir}
	}
	return distroAt(h.Home)
}

// distroAt is that of a Home. Its name is the Home's, by which those of one user cannot be
// taken for each other.
func distroAt(home string) distro {
	home = filepath.Clean(home)
	key := home
	if runtime.GOOS == "windows" { // where a path is the same in capitals
		key = strings.ToLower(home)
	}
	sum := sha256.Sum256([]byte(key))
	return distro{name: prefix + "home-" + hex.EncodeToString(sum[:8]), dir: home, home: true}
}

// take makes the directory of a Home, if it is missing, and has nobody else use it until
// the lock is released. Kinds: ErrConflict.
func (d distro) take() (*fsutil.Lock, error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, err
	}
	return d.lock()
}

func (d distro) lock() (*fsutil.Lock, error) {
	lock, err := fsutil.TryLock(filepath.Join(d.dir, lockName))
	if errors.Is(err, fsutil.ErrLocked) {
		return nil, atoll.Errorf("", "", atoll.ErrConflict, "another machine has its root file system in %s", d.dir)
	}
	return lock, err
}

// make has the distribution be there, not running, with what is in the archive. The guest of
// one that is there unpacks another one.
func (d distro) make(ctx context.Context, w wsl, archive, guest string) error {
	if !d.home {
		if err := d.forget(ctx, w); err != nil { // of one that was not told to end
			return err
		}
		return d.load(ctx, w, archive)
	}
	want, err := sumOf(archive)
	if err != nil {
		return atoll.E("", "", atoll.ErrInvalid, err)
	}
	has, err := d.loaded()
	if err == nil {
		err = d.find(ctx, w, has != "")
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = d.renew(ctx, w, archive)
	case err == nil && has == want:
		return nil
	case err == nil:
		err = d.update(ctx, w, archive, guest)
	}
	if err != nil {
		return err
	}
	return fsutil.WriteFile(d.file(rootName), []byte(want))
}

func (d distro) file(name string) string { return filepath.Join(d.dir, name) }

// loaded is the sum of the archive that is on the disk of a Home, "" if no import has come
// to its end.
func (d distro) loaded() (string, error) {
	text, err := fsutil.ReadFile(d.file(rootName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

// find has WSL know the distribution of a Home, not running: also one whose disk is there,
// but which WSL has forgotten. fs.ErrNotExist says that there is none, or not all of it.
func (d distro) find(ctx context.Context, w wsl, complete bool) error {
	if !complete {
		return fs.ErrNotExist
	}
	there, err := d.registered(ctx, w)
	if err != nil {
		return err
	}
	if there {
		return d.terminate(ctx, w) // what a host that has died has left
	}
	path := filepath.Join(d.file(diskDir), diskName)
	if _, err := os.Stat(path); err != nil {
		return err
	}
	_, err = w.run(ctx, nil, "--import-in-place", d.name, path)
	return err
}

// renew makes the distribution of a Home from the beginning.
func (d distro) renew(ctx context.Context, w wsl, archive string) error {
	if err := os.Remove(d.file(rootName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := d.forget(ctx, w); err != nil {
		return err
	}
	return d.load(ctx, w, archive)
}

// load makes the distribution out of a root archive.
func (d distro) load(ctx context.Context, w wsl, archive string) error {
	return send(ctx, w, archive, "--import", d.name, d.file(diskDir), "-", "--version", "2")
}

// update writes the files of a root archive over those that are there.
func (d distro) update(ctx context.Context, w wsl, archive, guest string) error {
	err := send(ctx, w, archive, d.exec(guest, "unpack")...)
	return errors.Join(err, d.terminate(ctx, w)) // WSL reads its configuration when it starts
}

// exec are the arguments of wsl.exe to execute a program in the distribution.
func (d distro) exec(program ...string) []string {
	return append([]string{"--distribution", d.name, "--user", "root", "--cd", "/", "--exec"}, program...)
}

// send runs wsl.exe with a root archive on its stdin.
func send(ctx context.Context, w wsl, path string, args ...string) error {
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
	_, err = w.run(ctx, r, args...)
	r.Close()
	if wrong := <-written; wrong != nil && !errors.Is(wrong, io.ErrClosedPipe) && ctx.Err() == nil {
		return atoll.Errorf("", "", atoll.ErrInvalid, "%s: %w", path, wrong)
	}
	return err
}

// end has nothing run in the distribution. What is no Home's goes, and so does what a Home
// has only a part of.
func (d distro) end(ctx context.Context, w wsl) error {
	has := ""
	if d.home {
		var err error
		if has, err = d.loaded(); err != nil {
			return err
		}
	}
	if has == "" {
		return d.forget(ctx, w)
	}
	return d.terminate(ctx, w)
}

// forget removes the distribution and its disk, if there are any.
func (d distro) forget(ctx context.Context, w wsl) error {
	there, err := d.registered(ctx, w)
	if err != nil {
		return err
	}
	if there {
		if err := d.terminate(ctx, w); err != nil {
			return err
		}
		if _, err := w.run(ctx, nil, "--unregister", d.name); err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
			return err
		}
	}
	return os.RemoveAll(d.file(diskDir))
}

// terminate ends all that runs in the distribution.
func (d distro) terminate(ctx context.Context, w wsl) error {
	_, err := w.run(ctx, nil, "--terminate", d.name)
	if err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
		return err
	}
	return nil
}

// registered reports whether WSL knows the distribution. A WSL that has none at all says
// so as if that were an error.
func (d distro) registered(ctx context.Context, w wsl) (bool, error) {
	text, err := w.run(ctx, nil, "--list", "--quiet", "--all")
	if kind := atoll.KindOf(err); err != nil && kind != atoll.ErrInternal {
		return false, err
	}
	if err != nil {
		// Without a code it is that, in the user's language.
		if strings.Contains(err.Error(), "Wsl/") && !strings.Contains(err.Error(), "WSL_E_DEFAULT_DISTRO_NOT_FOUND") {
			return false, err
		}
		return false, nil
	}
	return slices.ContainsFunc(strings.Split(text, "\n"), func(name string) bool {
		return strings.EqualFold(strings.TrimSpace(name), d.name)
	}), nil
}

// sumOf tells what a root file system was made from: an archive, and what this package adds
// to it.
func sumOf(archive string) (string, error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	_, _ = io.WriteString(sum, conf) // never fails
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
	if !d.here() {
		return atoll.Errorf("forget", "", atoll.ErrUnsupported, "%s", elsewhere())
	}
	if err := d.forget(ctx, distroAt(home)); err != nil {
		return atoll.E("forget", "", atoll.KindOf(err), err)
	}
	return nil
}

func (d *Driver) forget(ctx context.Context, root distro) error {
	lock, err := root.lock()
	gone := errors.Is(err, fs.ErrNotExist) // somebody has removed it, and WSL may know it still
	if err != nil && !gone {
		return err
	}
	defer lock.Release()
	w, err := d.program()
	if gone && err != nil {
		return nil // without WSL there is nothing
	}
	if err == nil {
		err = root.forget(ctx, w)
	}
	if err != nil || gone {
		return err
	}
	if err := os.Remove(root.file(rootName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := lock.Remove(); err != nil {
		return err
	}
	_ = os.Remove(root.dir) // what is somebody else's in it stays
	return nil
}

var _ vm.Homer = (*Driver)(nil)
