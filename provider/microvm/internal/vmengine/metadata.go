package vmengine

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// metadataDir is the directory with the file that tells the sandbox's programs what it is
// for.
func (e *engine) metadataDir() string { return filepath.Join(e.job.Run, "metadata") }

// metadataDisk is the path of a disk with what is in that directory, where it cannot be
// shared so that nobody inside changes it; "" where it is, or there is none.
func (e *engine) metadataDisk() string {
	if e.purposeless() || e.shares() && e.plan.Driver.Caps().Locked {
		return ""
	}
	return filepath.Join(e.job.Run, "metadata.img")
}

// purposeless reports whether nothing says what the machine is for: it has neither disks
// nor directories that nobody inside changes, and has only to run what its bundle says.
func (e *engine) purposeless() bool { return e.plan.Driver.Caps().Root }

// metadataSize is that of the disk, besides the file.
const metadataSize = 1 << 20

// addMetadata has that directory be one of those that are mounted. It comes first: what
// the spec has there is above it.
func (e *engine) addMetadata() {
	if e.purposeless() || e.metadataDisk() != "" {
		return
	}
	m := supervisor.Mount{Source: e.metadataDir(), Target: vm.MetadataDir, ReadOnly: true}
	e.job.Mounts = slices.Insert(e.job.Mounts, 0, m)
}

// writeMetadata is before the mounts are arranged.
func (e *engine) writeMetadata(ctx context.Context, undo *supervisor.Undo) error {
	if e.purposeless() {
		return nil
	}
	dir := e.metadataDir()
	undo.Add(func() { _ = os.RemoveAll(dir) })
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := e.metadata().Write(dir); err != nil {
		return fmt.Errorf("write what the sandbox is for: %w", err)
	}
	disk := e.metadataDisk()
	if disk == "" {
		return nil
	}
	info, err := os.Stat(filepath.Join(dir, vm.MetadataName))
	if err != nil {
		return err
	}
	undo.Add(func() { _ = os.Remove(disk) })
	size := (info.Size() + metadataSize + 4095) / 4096 * 4096
	return e.format(ctx, disk, size, "-O", "^has_journal", "-d", dir)
}

// metadata says what the spec and its environment say. The agent is the main process.
func (e *engine) metadata() *vm.Metadata {
	m := &vm.Metadata{
		SessionID: e.box.ID(), Secret: e.variable(atoll.SecretVar),
		Agent: &vm.MetadataAgent{Port: int(vm.PortAgent)},
	}
	if cmd := e.job.Spec.Cmd; len(cmd) > 0 {
		m.Agent.Command, m.Agent.Args = cmd[0], cmd[1:]
	}
	if e.workspace() != "" {
		m.Workspace = &vm.MetadataWorkspace{
			Path: e.variable(workspace.SourceVar), Commit: e.variable(workspace.CommitVar), MountPoint: vm.WorkspaceOrigin,
		}
	}
	return m
}

// workspace is the directory inside with what is worked on, "" if there is none.
func (e *engine) workspace() string {
	if dir := e.variable(workspace.Var); path.IsAbs(dir) {
		return dir
	}
	return ""
}

// variable is the value of a variable of the sandbox's environment, "" if it is not there.
func (e *engine) variable(name string) (value string) {
	for _, kv := range e.job.Spec.Env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			value = v
		}
	}
	return value
}
