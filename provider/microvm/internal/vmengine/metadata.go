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

// metadataDir returns the directory with the file that tells the sandbox's programs its purpose.
func (e *engine) metadataDir() string { return filepath.Join(e.job.Run, "metadata") }

// metadataDisk returns the path of a disk with the content of that directory, for drivers without
// read-only shares; "" if the directory is shared, or if there is none.
func (e *engine) metadataDisk() string {
	if e.lacksMetadata() || e.sharesDirs() && e.plan.Driver.Caps().Locked {
		return ""
	}
	return filepath.Join(e.job.Run, "metadata.img")
}

// lacksMetadata reports whether the machine has no metadata: its driver has neither disks nor
// read-only shares, and it only runs its bundle's Init.
func (e *engine) lacksMetadata() bool { return e.plan.Driver.Caps().Root }

// metadataSize is the size of the disk without the file.
const metadataSize = 1 << 20

// addMetadata adds the directory to the mounts. It comes first, so that mounts of the spec cover
// it.
func (e *engine) addMetadata() {
	if e.lacksMetadata() || e.metadataDisk() != "" {
		return
	}
	m := supervisor.Mount{Source: e.metadataDir(), Target: vm.MetadataDir, ReadOnly: true}
	e.job.Mounts = slices.Insert(e.job.Mounts, 0, m)
}

// writeMetadata writes the metadata. It has to run before mountShares.
func (e *engine) writeMetadata(ctx context.Context, undo *supervisor.Undo) error {
	if e.lacksMetadata() {
		return nil
	}
	dir := e.metadataDir()
	undo.Add(func() { _ = os.RemoveAll(dir) })
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := e.buildMetadata().Write(dir); err != nil {
		return fmt.Errorf("write metadata: %w", err)
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
	return e.formatDisk(ctx, disk, size, "-O", "^has_journal", "-d", dir)
}

// buildMetadata returns the metadata from the spec and its environment. The agent is the main
// process.
func (e *engine) buildMetadata() *vm.Metadata {
	m := &vm.Metadata{
		SessionID: e.box.ID(), Secret: e.envValue(atoll.SecretVar),
		Agent: &vm.MetadataAgent{Port: int(vm.PortAgent)},
	}
	if cmd := e.job.Spec.Cmd; len(cmd) > 0 {
		m.Agent.Command, m.Agent.Args = cmd[0], cmd[1:]
	}
	if e.workspaceDir() != "" {
		m.Workspace = &vm.MetadataWorkspace{
			Path: e.envValue(workspace.SourceVar), Commit: e.envValue(workspace.CommitVar), MountPoint: vm.WorkspaceOrigin,
		}
	}
	return m
}

// workspaceDir returns the directory of the workspace inside, "" if there is none.
func (e *engine) workspaceDir() string {
	if dir := e.envValue(workspace.Var); path.IsAbs(dir) {
		return dir
	}
	return ""
}

// envValue returns the value of a variable of the sandbox's environment, "" if it is not set.
func (e *engine) envValue(name string) (value string) {
	for _, kv := range e.job.Spec.Environ() {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			value = v
		}
	}
	return value
}
