//go:build unix

package local

import (
	"context"
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

func probeSystem() atoll.Probe { return atoll.Probe{OK: true, Notes: []string{Warning}} }

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// currentUser returns the user that all processes run as.
var currentUser = sync.OnceValue(func() *user.User {
	if u, err := user.Current(); err == nil {
		return u
	}
	uid, gid := strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())
	return &user.User{Username: uid, Uid: uid, Gid: gid}
})

// OwnUser implements inprocess.Backend.
func (backend) OwnUser(name string) bool {
	u := currentUser()
	return slices.Contains([]string{"", u.Username, u.Uid, u.Uid + ":" + u.Gid}, name)
}

// buildEnv returns the environment of a process. It contains nothing of this program's environment.
func buildEnv(pl *inprocess.Place, cmd *atoll.Command) []string {
	env := []string{"PATH=" + defaultPath, "HOME=" + pl.Dir, "USER=" + currentUser().Username, "LOGNAME=" + currentUser().Username}
	if cmd.TTY != nil {
		env = append(env, "TERM=xterm-256color")
	}
	return process.Environ(env, pl.Spec.Environ(), cmd.Env)
}

// Shell implements inprocess.Backend.
func (backend) Shell(pl *inprocess.Place, cmd *atoll.Command) string {
	if shell := process.Lookup(buildEnv(pl, cmd), "SHELL"); shell != "" && shell != "/bin/false" {
		return shell
	}
	if procgroup.Executable("/bin/bash") == nil {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// Start implements inprocess.Backend.
func (b backend) Start(ctx context.Context, pl *inprocess.Place, cmd *atoll.Command, io process.Stdio) (process.Handle, error) {
	dir := pl.HostPath(cmd.Dir)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, atoll.Errorf("exec", pl.ID, atoll.ErrExecFailed, "working directory %q: not a directory", cmd.Dir)
	}
	p, err := procgroup.Start(&procgroup.Program{
		Mark: procgroup.NewMark(b.realm, pl.ID), Args: cmd.Args, Env: buildEnv(pl, cmd), Dir: dir, TTY: cmd.TTY != nil,
	}, io)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Sweep implements inprocess.Backend.
func (b backend) Sweep(id string) error { return procgroup.Sweep(b.realm, id) }
