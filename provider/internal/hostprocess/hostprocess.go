//go:build unix

// Package hostprocess runs the processes of sandboxes as plain processes of this machine. It is the backend of providers that build
// on package inprocess.
package hostprocess

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/user"
	"slices"
	"strconv"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/procgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/inprocess"
)

// Path is the default PATH of processes.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// A Backend is an inprocess.Backend. It marks processes with the realm and the id of their sandbox. The realm differs between
// directories, whose sandboxes may have the same ids. The functions may be nil.
type Backend struct {
	realm string

	// Env returns variables of all processes of a sandbox, in addition to PATH, HOME, USER, LOGNAME and, in a terminal, TERM.
	Env func(*inprocess.Place) []string
	// Wrap returns a command that executes the command that follows it; see procgroup.Program.
	Wrap func(context.Context, *inprocess.Place) ([]string, error)
	// Ended releases what the processes of a sandbox had, after they have ended. A later Start may need it anew.
	Ended func(id string) error
}

// New returns a Backend for the sandboxes of a provider's absolute directory.
func New(dir string) *Backend {
	sum := sha256.Sum256([]byte(dir))
	return &Backend{realm: hex.EncodeToString(sum[:8])}
}

// currentUser returns the user that all processes run as.
var currentUser = sync.OnceValue(func() *user.User {
	if u, err := user.Current(); err == nil {
		return u
	}
	uid, gid := strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())
	return &user.User{Username: uid, Uid: uid, Gid: gid}
})

// OwnUser implements inprocess.Backend.
func (*Backend) OwnUser(name string) bool {
	u := currentUser()
	return slices.Contains([]string{"", u.Username, u.Uid, u.Uid + ":" + u.Gid}, name)
}

// buildEnv returns the environment of a process. It contains nothing of this program's environment.
func (b *Backend) buildEnv(pl *inprocess.Place, cmd *atoll.Command) []string {
	env := []string{"PATH=" + Path, "HOME=" + pl.Dir, "USER=" + currentUser().Username, "LOGNAME=" + currentUser().Username}
	if cmd.TTY != nil {
		env = append(env, "TERM=xterm-256color")
	}
	if b.Env != nil {
		env = append(env, b.Env(pl)...)
	}
	return process.Environ(env, pl.Spec.Environ(), cmd.Env)
}

// Shell implements inprocess.Backend.
func (b *Backend) Shell(pl *inprocess.Place, cmd *atoll.Command) string {
	if shell := process.Lookup(b.buildEnv(pl, cmd), "SHELL"); shell != "" && shell != "/bin/false" {
		return shell
	}
	if procgroup.Executable("/bin/bash") == nil {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// Start implements inprocess.Backend.
func (b *Backend) Start(ctx context.Context, pl *inprocess.Place, cmd *atoll.Command, io process.Stdio) (process.Handle, error) {
	dir := pl.HostPath(cmd.Dir)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, atoll.Errorf("exec", pl.ID, atoll.ErrExecFailed, "working directory %q: not a directory", cmd.Dir)
	}
	program := &procgroup.Program{
		Mark: procgroup.NewMark(b.realm, pl.ID), Args: cmd.Args, Env: b.buildEnv(pl, cmd), Dir: dir, TTY: cmd.TTY != nil,
	}
	if b.Wrap != nil {
		var err error
		if program.Wrap, err = b.Wrap(ctx, pl); err != nil {
			return nil, err
		}
	}
	p, err := procgroup.Start(program, io)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Sweep implements inprocess.Backend.
func (b *Backend) Sweep(id string) error {
	if err := procgroup.Sweep(b.realm, id); err != nil {
		return err
	}
	if b.Ended == nil {
		return nil
	}
	return b.Ended(id)
}

// Removed implements inprocess.Backend.
func (*Backend) Removed(string) {}

var _ inprocess.Backend = (*Backend)(nil)
