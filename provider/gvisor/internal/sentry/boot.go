//go:build linux

package sentry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/plan"
	"github.com/seed46cd37a8/atoll/provider/internal/hostroot"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/sandboxnet"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// startSteps are the steps of a start, those of plan.EngineSteps.
var startSteps = [len(plan.EngineSteps)]func(e *engine, undo *supervisor.Undo) error{
	(*engine).makeNetwork,
	(*engine).makeRoot,
	(*engine).startSentry,
	(*engine).restoreInside,
	func(e *engine, _ *supervisor.Undo) error { return e.chownDataVolume() },
	func(e *engine, _ *supervisor.Undo) error {
		err := e.makeWorkdir()
		if err == nil && e.job.Spec.System.Warm {
			e.runFirst()
		}
		return err
	},
}

// Steps implements supervisor.Engine.
func (e *engine) Steps() []supervisor.Step {
	all := make([]supervisor.Step, len(startSteps))
	for i, do := range startSteps {
		all[i] = supervisor.Step{Name: plan.EngineSteps[i], Do: func(_ context.Context, undo *supervisor.Undo) error { return do(e, undo) }}
	}
	return all
}

func (e *engine) makeNetwork(undo *supervisor.Undo) (err error) {
	if e.network, err = newNetwork(e.sandbox); err != nil {
		return err
	}
	undo.Add(func() { _ = e.network.close() })
	return nil
}

// makeRoot needs no undoing: all its mounts are in this process's own namespace.
func (e *engine) makeRoot(*supervisor.Undo) (err error) {
	if e.root, err = e.prepareRoot(); err != nil {
		return err
	}
	return e.prepareMountTargets(e.root)
}

func (e *engine) startSentry(undo *supervisor.Undo) (err error) {
	// The old log comes from processes of an earlier run.
	if err := os.Remove(filepath.Join(e.job.Dir, logName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if e.sentry, err = startSentry(e.job, e.root, e.network.path); err != nil {
		return e.withLogLine(err)
	}
	undo.Add(func() { _ = e.sentry.destroy() })
	e.files = newFiles(e)
	if !e.job.Ahead { // else Adopt does
		e.sandbox.Watch()
	}
	return e.startGuard()
}

// restoreInside gives a sandbox that was stopped its files, and one from a snapshot its hostname: the memory of an adopted
// sandbox has that which Adopt set.
func (e *engine) restoreInside(*supervisor.Undo) error {
	if e.job.Snapshot == "" {
		return e.restoreUpper()
	}
	if err := e.setHostname(context.Background(), sandboxHostname(&e.job.Spec)); err != nil {
		return err
	}
	return e.continueChildren(context.Background())
}

// withLogLine adds to err what the sentry or the gofer logged before it died: all that
// gVisor itself reports is an end of file.
func (e *engine) withLogLine(err error) error {
	data, readErr := os.ReadFile(filepath.Join(e.job.Dir, logName))
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if readErr != nil || lines[0] == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, lines[0])
}

// chownDataVolume gives a data volume that still belongs to root to the default user; a new
// one with all files that were written to it before the first start.
func (e *engine) chownDataVolume() error {
	cred, err := e.resolveUser(context.Background(), e.defaultUser())
	if err != nil {
		return atoll.E("start", e.sandbox.ID(), atoll.ErrInvalid, err)
	}
	return e.sandbox.ChownVolume(int(cred.UID), int(cred.GID))
}

// firstTimeout limits runFirst.
const firstTimeout = 5 * time.Second

// runFirst runs a shell that ends at once, so that the sentry has its pages, and those of the libraries that most programs
// need. An image without a shell gains nothing.
func (e *engine) runFirst() {
	ctx, cancel := context.WithTimeout(context.Background(), firstTimeout)
	defer cancel()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer null.Close()
	args, err := e.execArgs(ctx, "", &atoll.Command{Args: []string{"/bin/sh", "-c", ":"}})
	if err != nil {
		return
	}
	args.FilePayload = control.NewFilePayload(map[int]*os.File{0: null, 1: null, 2: null}, nil)
	pid, err := e.sentry.execProgram(ctx, args)
	if err != nil {
		return
	}
	defer time.AfterFunc(firstTimeout, func() { _ = e.sentry.signalProcess(pid, atoll.SIGKILL) }).Stop()
	_, _ = e.sentry.waitProgram(pid)
}

// prepareRoot lays out the root file system in this process's own mount namespace and
// returns its path.
func (e *engine) prepareRoot() (string, error) {
	if err := e.mountDisk(); err != nil {
		return "", err
	}
	base := filepath.Join(e.job.Dir, "rootfs")
	if err := os.Mkdir(base, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	root := base
	if err := e.layOutRoot(&root); err != nil {
		return "", err
	}
	// The sandbox must not see what the host mounts later.
	if err := unix.Mount("", base, "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", fmt.Errorf("make mounts private: %w", err)
	}
	if err := addSandboxFiles(root, e.etcFiles()); err != nil {
		return "", err
	}
	var err error
	e.trustVars, err = sandboxnet.InstallTrust(e.sandbox, e.network.authority, sandboxnet.RootFiles{Root: root, Dir: filepath.Join(e.job.Run, "trust")})
	return root, err
}

// layOutRoot makes the root file system at root, or below it, and then changes root.
func (e *engine) layOutRoot(root *string) (err error) {
	if e.job.Record.Image == "" {
		if err := hostroot.LayOut(*root, hostroot.Options{Extra: e.job.HostPaths}); err != nil {
			return fmt.Errorf("host root file system: %w", err)
		}
		return nil
	}
	if *root, err = imageRoot(*root, e.job.Record.Image); err != nil {
		return fmt.Errorf("root file system of %s: %w", e.job.Record.Status.Image, err)
	}
	return nil
}

// diskName is the directory in Job.Run at which the sandbox's own directory is mounted for
// gVisor to keep the overlay's upper layer in: on disk, and under a path without the
// characters that separate gVisor's options.
const diskName = "disk"

func (e *engine) mountDisk() error {
	if strings.ContainsAny(e.job.Run, ",:=") {
		return atoll.Errorf("start", e.sandbox.ID(), atoll.ErrInvalid, "run directory %s: its path must not contain ',', ':' or '='", e.job.Run)
	}
	disk := filepath.Join(e.job.Run, diskName)
	if err := os.Mkdir(disk, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := unix.Mount(e.job.Dir, disk, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", disk, err)
	}
	return nil
}

// Unmount implements supervisor.Engine.
func (e *engine) Unmount() error {
	var errs []error
	for _, path := range []string{filepath.Join(e.job.Run, diskName), filepath.Join(e.job.Dir, "rootfs")} {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}
