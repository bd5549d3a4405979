package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

// RunJob runs the Job in a directory, and writes its Outcome there once all has ended that
// the program has started. It is for the first process of a container, which it kills
// all others of. When it returns an error, there is no Outcome.
func RunJob(dir string) error {
	if os.Getpid() != 1 {
		return errors.New("a job is run by the first process of a container for it alone")
	}
	result, err := runJob(dir)
	out := Outcome{Result: result}
	if err != nil {
		out.Kind, out.Message = atoll.KindOf(err), err.Error()
		if e, ok := errors.AsType[*atoll.Error](err); ok && e.Err != nil {
			out.Message = e.Err.Error()
		}
	}
	text, err := json.Marshal(out)
	if err != nil {
		return err
	}
	if err := killAll(); err != nil { // what the program has left would write an Outcome, too
		return err
	}
	name := filepath.Join(dir, OutcomeFile)
	if err := os.RemoveAll(name); err != nil { // of the program's
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// killTime is how long what was killed may take to be gone: the kernel may have to finish
// what it does for it.
const killTime = 30 * time.Second

// killAll kills all processes but this one, the first of its PID namespace, and waits until
// they have been reaped, as a Machine does.
func killAll() error {
	for end := time.Now().Add(killTime); ; time.Sleep(time.Millisecond) {
		switch err := unix.Kill(-1, unix.SIGKILL); {
		case errors.Is(err, unix.ESRCH): // there is none
			return nil
		case err != nil:
			return os.NewSyscallError("kill", err)
		}
		if time.Now().After(end) {
			return fmt.Errorf("what the program has left does not end within %s of being killed", killTime)
		}
	}
}

func runJob(dir string) (*jobs.Result, error) {
	text, err := os.ReadFile(filepath.Join(dir, JobFile))
	if err != nil {
		return nil, err
	}
	var job Job
	if err := json.Unmarshal(text, &job); err != nil {
		return nil, err
	}
	job.Machine.Env = append(slices.DeleteFunc(os.Environ(), ofEngine), job.Machine.Env...)
	m, err := NewMachine(job.Machine)
	if err != nil {
		return nil, err
	}
	ctx := context.Background() // whoever breaks it off ends this process
	result, err := jobs.In(ctx, m, &job.Compute)
	return result, errors.Join(err, m.Stop(ctx, 0))
}

// ofEngine reports whether a variable is the engine's: by these it has programs tell it what
// they do, at an address that is none of theirs. HOME is that of the guest's user. Those of
// the image are the Machine's.
func ofEngine(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return strings.HasPrefix(name, "OTEL_") || slices.Contains([]string{"TRACEPARENT", "TRACESTATE", "BAGGAGE", "HOME"}, name)
}
