package dagger

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// program is the path of the guest's program, which sessions send to the engine. It
// writes it if it is not there. Kinds: ErrUnavailable.
func (b *Backend) program() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.guest != "" && inUse(b.guest) {
		return b.guest, nil
	}
	program, err := b.opts.Guest()
	if err == nil {
		err = guest.Fits(program, runtime.GOARCH)
	}
	if err != nil {
		return "", atoll.E("run", "", atoll.ErrUnavailable, err)
	}
	path := filepath.Join(b.opts.Dir, fmt.Sprintf(guestPrefix+"%.12x", sha256.Sum256(program)))
	if !inUse(path) {
		if err := write(path, program); err != nil {
			return "", atoll.E("run", "", atoll.ErrUnavailable, err)
		}
	}
	b.guest = path
	return path, nil
}

const (
	jobsDir     = "jobs"
	lockSuffix  = ".lock"
	guestPrefix = "guest-"
	newPrefix   = "new-"             // of what is to be one
	keepTime    = 7 * 24 * time.Hour // of guests that nobody has used
)

// inUse reports whether a guest is there, and says in its time that it is used: not at
// each use, or the engine would be sent it again.
func inUse(path string) bool {
	info, err := os.Stat(path)
	if err == nil && time.Since(info.ModTime()) > keepTime/7 {
		err = os.Chtimes(path, time.Time{}, time.Now())
	}
	return err == nil
}

// tidy removes what those have left who were killed, jobs with code and variables in them,
// and guests of other versions. What cannot be removed stays for the next one.
func tidy(dir string) {
	jobs, _ := os.ReadDir(filepath.Join(dir, jobsDir))
	for _, e := range jobs {
		if job, ok := strings.CutSuffix(filepath.Join(dir, jobsDir, e.Name()), lockSuffix); ok {
			tidyJob(job)
		}
	}
	files, _ := os.ReadDir(dir)
	for _, e := range files {
		if !strings.HasPrefix(e.Name(), guestPrefix) && !strings.HasPrefix(e.Name(), newPrefix) {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > keepTime {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// tidyJob removes a job that nobody runs any more.
func tidyJob(job string) {
	lock, err := fsutil.TryLockExisting(job + lockSuffix)
	if err != nil {
		return // it is in use
	}
	if err := fsutil.RemoveAll(job); err != nil {
		lock.Release()
		return
	}
	_ = lock.Remove()
}

// write writes a program, which others see as a whole and executable.
func write(path string, program []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), newPrefix+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(program)
	err = errors.Join(err, f.Chmod(0o755), f.Close())
	if err == nil {
		err = fsutil.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// pack makes a directory in parent with what the guest is told, which is locked until
// unpack removes it: see tidy. It says a number that none has said before, so that nothing
// is ever the same as what the engine has executed already.
func pack(parent string, job *jobs.Job, image *imageConfig) (dir string, unpack func(), err error) {
	var env []string
	for _, v := range image.Env {
		env = append(env, v.Name+"="+v.Value)
	}
	id := atoll.NewID()
	text, err := json.Marshal(guest.Job{
		Machine: guest.Config{
			ID: id, Workdir: cmp.Or(job.Spec.Workdir, atoll.DefaultWorkdir), User: cmp.Or(job.Spec.User, image.User), Env: append(env, job.Spec.Env...),
			Self: guestPath, Offline: job.Spec.Network.Mode != atoll.NetworkOn,
		},
		Compute: *job,
	})
	if err != nil {
		return "", nil, err
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", nil, err
	}
	dir = filepath.Join(parent, id)
	lock, err := fsutil.WaitLock(dir + lockSuffix)
	if err != nil {
		return "", nil, err
	}
	unpack = func() {
		if err := fsutil.RemoveAll(dir); err != nil {
			lock.Release() // for tidy to try
			return
		}
		_ = lock.Remove()
	}
	err = os.Mkdir(dir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, guest.JobFile), text, 0o600)
	}
	if err != nil {
		unpack()
		return "", nil, err
	}
	return dir, unpack, nil
}
