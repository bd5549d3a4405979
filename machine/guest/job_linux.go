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

// RunJob runs the Job in a directory, and writes its Outcome there after all processes of the
// program have ended. It is for the first process of a container: it kills all others. With an
// error, there is no Outcome.
func RunJob(dir string) error {
	if os.Getpid() != 1 {
		return errors.New("a job must be run by the first process of its own container")
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
	if err := killAll(); err != nil { // remaining processes could write an Outcome, too
		return err
	}
	name := filepath.Join(dir, OutcomeFile)
	if err := os.RemoveAll(name); err != nil { // maybe written by the program
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// killTimeout bounds the end of killed processes: the kernel may have to finish work for them.
const killTimeout = 30 * time.Second

// killAll kills all processes but this one, the first of its PID namespace, and waits until
// they have been reaped, as a Machine does.
func killAll() error {
	for end := time.Now().Add(killTimeout); ; time.Sleep(time.Millisecond) {
		switch err := unix.Kill(-1, unix.SIGKILL); {
		case errors.Is(err, unix.ESRCH): // no process is left
			return nil
		case err != nil:
			return os.NewSyscallError("kill", err)
		}
		if time.Now().After(end) {
			return fmt.Errorf("the program's processes do not end within %s of being killed", killTimeout)
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
	ctx := context.Background() // to cancel, end this process
	result, err := jobs.In(ctx, m, &job.Compute)
	return result, errors.Join(err, m.Stop(ctx, 0))
}

// ofEngine reports whether a variable is the engine's: with these it makes programs send traces to
// an address that is not theirs. HOME is that of the guest's user. The Machine adds those of the
// image.
func ofEngine(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return strings.HasPrefix(name, "OTEL_") || slices.Contains([]string{"TRACEPARENT", "TRACESTATE", "BAGGAGE", "HOME"}, name)
}
