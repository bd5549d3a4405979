//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// A workload is a shell script of real work in an empty directory. $INPUTS is a directory that it
// cannot change.
type workload struct {
	title   string
	tool    string // program that it needs
	prepare string // script that runs once in the directory above, and is not measured
	script  string
}

var workloads = []workload{
	{title: "npm ci of 300 packages", tool: "npm", prepare: `for f in package package-lock; do sed "s|INPUTS|$INPUTS|" $INPUTS/npm/$f.json > $f.json; done`,
		script: "cp ../*.json . && npm ci --offline --no-audit --no-fund --ignore-scripts --loglevel=error"},
	{title: "go build of 60 packages", tool: "go", script: "go build -o program $INPUTS/program.go"},
	{title: "unpack 10,000 small files", tool: "tar", script: "tar xf $INPUTS/small.tar"},
	{title: "git clone of 100 MB", tool: "git", script: "git clone -q --no-local $INPUTS/repository cloned"},
	{title: "SQLite, 100,000 inserts in 1,000 transactions", tool: "sqlite3", script: "sqlite3 data.db < $INPUTS/inserts.sql"},
	{title: "rg over 50,000 files", tool: "rg", prepare: "mkdir many && tar xf $INPUTS/many.tar -C many", script: "rg -c needle ../many | wc -l"},
}

// workRounds is the number of rounds of each workload, which takes seconds.
const workRounds = 2

// A place runs shell scripts in an empty directory.
type place struct {
	row string
	run func(ctx context.Context, script string) error
}

// The rows of workloads.
const (
	onLinux  = "Linux"
	inRunsc  = "runsc, bare"
	inDocker = "docker"
	inNative = "atoll, provider native"
	inAtoll  = "atoll"
)

// measureWork compares programs in sandboxes with the same programs on the machine.
func (b *bench) measureWork(ctx context.Context) (err error) {
	inputs := filepath.Join(b.dir, "inputs")
	if err := makeInputs(ctx, inputs); err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	var places []place
	for _, open := range []func(context.Context, string) (place, func() error, error){b.linuxPlace, b.runscPlace, b.dockerPlace, b.nativePlace, b.atollPlace} {
		p, closer, openErr := open(ctx, inputs)
		if closer != nil {
			defer func() { err = errors.Join(err, closer()) }()
		}
		var missing missingError
		if errors.As(openErr, &missing) {
			b.table.missing = append(b.table.missing, missing.Error())
			continue
		}
		if openErr != nil {
			return openErr
		}
		places = append(places, p)
	}
	for _, w := range workloads {
		if _, err := exec.LookPath(w.tool); err != nil {
			b.table.missing = append(b.table.missing, fmt.Sprintf("%s: %s is not installed", w.title, w.tool))
			continue
		}
		var methods []method
		for _, p := range places {
			if err := p.run(ctx, w.prepare); err != nil {
				return fmt.Errorf("%s: %s: %w", w.title, p.row, err)
			}
			methods = append(methods, method{p.row, timeCall(func(ctx context.Context) error { return p.run(ctx, inNewDir+w.script) })})
		}
		if err := b.compareRounds(ctx, min(b.rounds, workRounds), "work: "+w.title, nil, methods); err != nil {
			return err
		}
	}
	return nil
}

// inNewDir changes to a new directory. Directories of earlier rounds stay until all is measured: ext4 is slow to
// create files while it remembers many that were deleted.
const inNewDir = "export HOME=$(mktemp -d -p $PWD); cd $(mktemp -d -p .); "

// scriptArgs returns the command of a script in the directory dir.
func scriptArgs(dir, script string) []string {
	return []string{"/bin/sh", "-ec", "cd " + dir + "\n" + script}
}

// scriptEnv returns the environment of scripts in the directory dir, with the inputs in another one.
func scriptEnv(dir, inputs string) []string {
	return []string{"PATH=/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "INPUTS=" + inputs,
		"GOTOOLCHAIN=local", "GO111MODULE=off", "CGO_ENABLED=0",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}
}

// linuxPlace runs scripts without isolation.
func (b *bench) linuxPlace(_ context.Context, inputs string) (place, func() error, error) {
	dir := filepath.Join(b.dir, "work-linux")
	return place{onLinux, func(ctx context.Context, script string) error {
		args := scriptArgs(dir, script)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = scriptEnv(dir, inputs)
		_, err := untilEnd(cmd)
		return err
	}}, nil, os.Mkdir(dir, 0o755)
}

// programDirs are the directories of the machine's programs, which places have in their root file system.
var programDirs = []string{"/bin", "/etc", "/lib", "/lib64", "/usr"}

// runscPlace runs scripts in bare gVisor with the machine's programs.
func (b *bench) runscPlace(ctx context.Context, inputs string) (place, func() error, error) {
	dir := filepath.Join(b.dir, "work-runsc")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return place{}, nil, err
	}
	mounts := []map[string]any{bindMount(inputs, "/inputs", "ro"), bindMount(dir, "/work", "rw")}
	for _, path := range programDirs {
		source, err := filepath.EvalSymlinks(path)
		if err != nil {
			return place{}, nil, err
		}
		mounts = append(mounts, bindMount(source, path, "ro"))
	}
	r := newRunsc(b, "work")
	bundle, err := r.writeBundle("work", b.root, []string{"sleep", "86400"}, mounts...)
	if err != nil {
		return place{}, nil, err
	}
	if err := r.makeCommand(ctx, "run", "--detach", "--bundle", bundle, "live").Run(); err != nil {
		return place{}, r.removeAll, fmt.Errorf("runsc run: %w", err)
	}
	return place{inRunsc, func(ctx context.Context, script string) error {
		args := []string{"exec"}
		for _, kv := range scriptEnv("/work", "/inputs") {
			args = append(args, "--env", kv)
		}
		_, err := untilEnd(r.makeCommand(ctx, append(append(args, "live"), scriptArgs("/work", script)...)...))
		return err
	}}, r.removeAll, nil
}

// dockerPlace runs scripts in a container with the machine's programs.
func (b *bench) dockerPlace(ctx context.Context, inputs string) (place, func() error, error) {
	dir := filepath.Join(b.dir, "work-docker")
	e, err := b.startEngine(ctx, "work-engine")
	if err != nil {
		if e != nil {
			return place{}, e.stopDaemon, err
		}
		return place{}, nil, err
	}
	args := []string{"run", "--detach", "--network=none", "--name=live", "--volume", inputs + ":/inputs:ro", "--volume", dir + ":/work"}
	for _, path := range programDirs {
		args = append(args, "--volume", path+":"+path+":ro")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return place{}, e.stopDaemon, err
	}
	if _, err := untilEnd(e.dockerCommand(ctx, append(args, image, "sleep", "86400")...)); err != nil {
		return place{}, e.stopDaemon, err
	}
	closer := func() error {
		_, err := untilEnd(e.dockerCommand(context.WithoutCancel(ctx), "rm", "--force", "live"))
		return errors.Join(err, e.stopDaemon())
	}
	return place{inDocker, func(ctx context.Context, script string) error {
		args := []string{"exec"}
		for _, kv := range scriptEnv("/work", "/inputs") {
			args = append(args, "--env", kv)
		}
		_, err := untilEnd(e.dockerCommand(ctx, append(append(args, "live"), scriptArgs("/work", script)...)...))
		return err
	}}, closer, nil
}

// atollPlace runs scripts in a default sandbox.
func (b *bench) atollPlace(ctx context.Context, inputs string) (place, func() error, error) {
	return b.sandboxPlace(ctx, inputs, inAtoll)
}

// nativePlace runs scripts in a sandbox of the provider native.
func (b *bench) nativePlace(ctx context.Context, inputs string) (place, func() error, error) {
	return b.sandboxPlace(ctx, inputs, inNative, nativeSetting)
}

// sandboxPlace runs scripts in a sandbox of a server with these settings.
func (b *bench) sandboxPlace(ctx context.Context, inputs, row string, settings ...string) (place, func() error, error) {
	s, err := startServer(ctx, b, strings.ReplaceAll(row, " ", "-"), settings...)
	if err != nil {
		return place{}, nil, err
	}
	sb, err := s.Create(ctx, &atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: inputs, Target: "/inputs", ReadOnly: true}}})
	if err != nil {
		return place{}, s.stopServer, err
	}
	return place{row, func(ctx context.Context, script string) error {
		stderr := &atoll.Tail{Limit: 2 << 10}
		err := atoll.Run(ctx, sb, &atoll.Command{Args: scriptArgs("/work", script), Env: scriptEnv("/work", "/inputs"), Stderr: stderr})
		if err != nil {
			err = fmt.Errorf("%w: %s", err, stderr.Bytes())
		}
		return err
	}}, s.stopServer, nil
}
