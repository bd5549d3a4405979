package guest

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// A use is when somebody last used a Machine.
type use struct {
	mu    sync.Mutex
	calls int // in progress
	last  time.Time
}

// counts returns a handler that does what next does, and counts as use.
func (u *use) counts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.add(1)
		defer u.add(-1)
		next.ServeHTTP(w, r)
	})
}

func (u *use) add(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls += n
	u.last = time.Now()
}

// latest is when the last call ended: now while there is one.
func (u *use) latest() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls > 0 {
		return time.Now()
	}
	return u.last
}

// idleLooks is how often, within the time limit, it is looked whether something
// runs; at least once a minute.
const idleLooks = 10

// Idle returns when for so long nobody has used the machine: no process ran in
// it and no call was made to it.
func (m *Machine) Idle(ctx context.Context, limit time.Duration) error {
	step := min(limit/idleLooks, time.Minute)
	for used := time.Now(); time.Since(used) < limit; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(step):
		}
		if t := m.use.latest(); t.After(used) {
			used = t
		}
		if m.busy() {
			used = time.Now()
		}
	}
	return nil
}

// busy reports whether any process runs but this one, that which serves the
// files, and those that the engine executes to connect to this one.
func (m *Machine) busy() bool {
	if m.table.Running() > 0 {
		return true
	}
	names, err := os.ReadDir("/proc")
	if err != nil {
		return true // as far as can be told
	}
	m.mu.Lock()
	clerk := m.clerkPID
	m.mu.Unlock()
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil || pid == os.Getpid() || pid == clerk {
			continue
		}
		if parent, state, err := lookUp(pid); err == nil && parent != 0 && state != "Z" {
			return true
		}
	}
	return false
}

// lookUp reads the parent of a process in this PID namespace, 0 for one that was
// put into it from outside, and its state; see proc_pid_stat(5).
func lookUp(pid int) (parent int, state string, err error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, "", err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // a name may hold anything
	if len(fields) < 2 {
		return 0, "", os.ErrInvalid
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return parent, string(fields[0]), err
}
