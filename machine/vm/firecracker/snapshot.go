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

// What is in a snapshot's directory.
const (
	stateFile  = "state"
	memoryFile = "memory"
	partsFile  = "machine.json"
	writeDir   = "snapshot" // in the root directory, while it is written
)

// parts are what a snapshot is of, and the machine that goes on from it has to be.
type parts struct {
	CPUs   int         `json:"cpus"`
	Memory atoll.Bytes `json:"memory"`
	Vsock  bool        `json:"vsock"`
	Disks  []part      `json:"disks"`
}

type part struct {
	ID       string `json:"id"`
	ReadOnly bool   `json:"read_only"`
}

func partsOf(h *vm.Hardware) parts {
	p := parts{CPUs: h.CPUs, Memory: h.Memory, Vsock: h.CID != 0, Disks: []part{}}
	for _, d := range h.Disks {
		p.Disks = append(p.Disks, part{d.ID, d.ReadOnly})
	}
	return p
}

// checkSnapshot reports whether the machine can go on from its snapshot. Nothing that
// is asked for is left out without a word.
func (m *machine) checkSnapshot() error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("machine", m.h.ID, atoll.ErrInvalid, format, args...)
	}
	text, err := os.ReadFile(filepath.Join(m.h.Snapshot, partsFile))
	if err != nil {
		return bad("%s is no snapshot of a firecracker machine: %w", m.h.Snapshot, err)
	}
	var p parts
	if err := json.Unmarshal(text, &p); err != nil {
		return bad("%s is no snapshot of a firecracker machine: %w", m.h.Snapshot, err)
	}
	was, err := json.Marshal(p)
	if err != nil {
		return bad("%w", err)
	}
	is, err := json.Marshal(partsOf(&m.h))
	if err != nil {
		return bad("%w", err)
	}
	if string(was) != string(is) {
		return bad("the snapshot is of a machine with other hardware: %s, and not %s", was, is)
	}
	return nil
}

// load goes on from the snapshot.
func (m *machine) load(ctx context.Context) error {
	return m.api.do(ctx, http.MethodPut, "/snapshot/load", snapshotLoad{
		State: stateFile, Memory: backend{"File", memoryFile}, Resume: true,
	}, nil)
}

// Snapshot implements vm.Machine. The memory's file is read for as long as a machine
// runs that has gone on from it.
func (m *machine) Snapshot(ctx context.Context, dir string) (err error) {
	if _, err := m.running("snapshot"); err != nil {
		return err
	}
	fail := func(err error) error { return atoll.E("snapshot", m.h.ID, atoll.KindOf(err), err) }
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
	if err := m.shelf(dir); err != nil {
		return fail(err)
	}
	defer os.RemoveAll(filepath.Join(m.root, writeDir))
	err = m.ask(ctx, "snapshot", http.MethodPut, "/snapshot/create", snapshotCreate{
		Type: "Full", State: writeDir + "/" + stateFile, Memory: writeDir + "/" + memoryFile,
	})
	if err != nil {
		return err
	}
	if err := m.fetch(dir); err != nil {
		return fail(err)
	}
	for _, name := range []string{stateFile, memoryFile} { // for users of other jails; dir is ours alone
		if err := os.Chmod(filepath.Join(dir, name), 0o444); err != nil {
			return fail(err)
		}
	}
	text, err := json.Marshal(partsOf(&m.h))
	if err != nil {
		return fail(err)
	}
	if err := os.WriteFile(filepath.Join(dir, partsFile), text, 0o600); err != nil {
		return fail(err)
	}
	return nil
}

// shelf makes what Firecracker writes a snapshot into: dir, unless it is jailed.
func (m *machine) shelf(dir string) error {
	at := filepath.Join(m.root, writeDir)
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	if j := m.d.opts.Jail; j != nil {
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

// fetch brings a snapshot out of the jail.
func (m *machine) fetch(dir string) error {
	if m.d.opts.Jail == nil {
		return nil
	}
	root, err := os.OpenRoot(m.root) // who is in there can put links anywhere
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{stateFile, memoryFile} {
		if err := copyOut(root, writeDir+"/"+name, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func copyOut(root *os.Root, from, to string) error {
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
