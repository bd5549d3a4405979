package firecracker

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// The files in a snapshot's directory.
const (
	stateFile    = "state"
	memoryFile   = "memory"
	hardwareFile = "machine.json"
	writeDir     = "snapshot" // in the root directory, while Firecracker writes the snapshot
)

// snapshotHardware is the hardware of a snapshot's machine; a machine that resumes from it needs
// the same.
type snapshotHardware struct {
	CPUs   int            `json:"cpus"`
	Memory atoll.Bytes    `json:"memory"`
	Vsock  bool           `json:"vsock"`
	Disks  []snapshotDisk `json:"disks"`
}

type snapshotDisk struct {
	ID       string `json:"id"`
	ReadOnly bool   `json:"read_only"`
}

func snapshotHardwareOf(h *vm.Hardware) snapshotHardware {
	p := snapshotHardware{CPUs: h.CPUs, Memory: h.Memory, Vsock: h.CID != 0, Disks: []snapshotDisk{}}
	for _, d := range h.Disks {
		p.Disks = append(p.Disks, snapshotDisk{d.ID, d.ReadOnly})
	}
	return p
}

// checkSnapshot returns an error if the machine cannot resume from its snapshot, because the
// hardware differs in any way.
func (m *machine) checkSnapshot() error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("machine", m.hardware.ID, atoll.ErrInvalid, format, args...)
	}
	text, err := os.ReadFile(filepath.Join(m.hardware.Snapshot, hardwareFile))
	if err != nil {
		return bad("%s is not a snapshot of a firecracker machine: %w", m.hardware.Snapshot, err)
	}
	var p snapshotHardware
	if err := json.Unmarshal(text, &p); err != nil {
		return bad("%s is not a snapshot of a firecracker machine: %w", m.hardware.Snapshot, err)
	}
	was, err := json.Marshal(p)
	if err != nil {
		return bad("%w", err)
	}
	is, err := json.Marshal(snapshotHardwareOf(&m.hardware))
	if err != nil {
		return bad("%w", err)
	}
	if string(was) != string(is) {
		return bad("the snapshot needs other hardware: %s, not %s", was, is)
	}
	return nil
}

// loadSnapshot resumes the machine from the snapshot.
func (m *machine) loadSnapshot(ctx context.Context) error {
	return m.api.sendRequest(ctx, http.MethodPut, "/snapshot/load", snapshotLoad{
		State: stateFile, Memory: backend{"File", memoryFile}, Resume: true,
	}, nil)
}

// Snapshot implements vm.Machine. Machines that resume from it read the memory file as long as they
// run.
func (m *machine) Snapshot(ctx context.Context, dir string) (err error) {
	if _, err := m.runningProcess("snapshot"); err != nil {
		return err
	}
	fail := func(err error) error { return atoll.E("snapshot", m.hardware.ID, atoll.KindOf(err), err) }
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fail(err)
	}
	m.mu.Lock()
	paused := m.paused
	m.mu.Unlock()
	defer func() {
		if err == nil {
			return
		}
		err = errors.Join(err, os.RemoveAll(dir))
		if !paused {
			_ = m.Resume(context.WithoutCancel(ctx)) // it may have ended
		}
	}()
	if err := m.setPaused(ctx, "snapshot", true); err != nil {
		return err
	}
	if err := m.prepareSnapshotDir(dir); err != nil {
		return fail(err)
	}
	defer os.RemoveAll(filepath.Join(m.root, writeDir))
	err = m.callAPI(ctx, "snapshot", http.MethodPut, "/snapshot/create", snapshotCreate{
		Type: "Full", State: writeDir + "/" + stateFile, Memory: writeDir + "/" + memoryFile,
	})
	if err != nil {
		return err
	}
	if err := m.copySnapshotOut(dir); err != nil {
		return fail(err)
	}
	for _, name := range []string{stateFile, memoryFile} { // other jails run as other users; dir is private to us
		if err := os.Chmod(filepath.Join(dir, name), 0o444); err != nil {
			return fail(err)
		}
	}
	text, err := json.Marshal(snapshotHardwareOf(&m.hardware))
	if err != nil {
		return fail(err)
	}
	if err := os.WriteFile(filepath.Join(dir, hardwareFile), text, 0o600); err != nil {
		return fail(err)
	}
	return nil
}

// prepareSnapshotDir creates the directory that Firecracker writes a snapshot into: a link to dir,
// or an own directory in a jail.
func (m *machine) prepareSnapshotDir(dir string) error {
	at := filepath.Join(m.root, writeDir)
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	if j := m.driver.opts.Jail; j != nil {
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		return os.Lchown(at, j.UID, j.GID)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	return os.Symlink(abs, at)
}

// copySnapshotOut copies a snapshot from the jail into dir. Without a jail it is there already.
func (m *machine) copySnapshotOut(dir string) error {
	if m.driver.opts.Jail == nil {
		return nil
	}
	root, err := os.OpenRoot(m.root) // the jailed process can create links to anywhere
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{stateFile, memoryFile} {
		if err := copyFromJail(root, writeDir+"/"+name, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func copyFromJail(root *os.Root, from, to string) error {
	info, err := root.Lstat(from)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "snapshot", Path: from, Err: fs.ErrInvalid}
	}
	src, err := root.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return copyFile(src, to, 0o600)
}
