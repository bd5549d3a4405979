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

// guestProgram returns the path of the guest's program, which sessions send to the
// engine. It writes the file if it is missing. Kinds: ErrUnavailable.
func (b *Backend) guestProgram() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.guest != "" && touchGuest(b.guest) {
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
	if !touchGuest(path) {
		if err := writeProgram(path, program); err != nil {
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
	newPrefix   = "new-"             // of unfinished files
	keepTime    = 7 * 24 * time.Hour // of unused guests
)

// touchGuest reports whether a guest exists, and marks it as used by its time: not at
// each use, since the engine would upload it again.
func touchGuest(path string) bool {
	info, err := os.Stat(path)
	if err == nil && time.Since(info.ModTime()) > keepTime/7 {
		err = os.Chtimes(path, time.Time{}, time.Now())
	}
	return err == nil
}

// removeLeftovers removes files of killed programs: jobs, which contain code and
// variables, and guests of other versions. It ignores errors; the next program tries
// again.
func removeLeftovers(dir string) {
	jobs, _ := os.ReadDir(filepath.Join(dir, jobsDir))
	for _, e := range jobs {
		if job, ok := strings.CutSuffix(filepath.Join(dir, jobsDir, e.Name()), lockSuffix); ok {
			removeJob(job)
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

// removeJob removes a job that nobody runs any more.
func removeJob(job string) {
	lock, err := fsutil.TryLockExisting(job + lockSuffix)
	if err != nil {
		return // in use
	}
	if err := fsutil.RemoveAll(job); err != nil {
		lock.Release()
		return
	}
	_ = lock.Remove()
}

// writeProgram writes an executable file atomically.
func writeProgram(path string, program []byte) error {
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

// packJob makes a directory in parent with the guest's input. The directory is locked
// until the caller calls unpack, which removes it: see removeLeftovers. The input
// contains a unique id, so that the engine never takes it for a command that it has
// executed already.
func packJob(parent string, job *jobs.Job, image *imageConfig) (dir string, unpack func(), err error) {
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
			lock.Release() // removeLeftovers tries again
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
