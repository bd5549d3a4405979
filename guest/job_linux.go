package guest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/compute"
)

// RunJob runs the Job in a directory, and writes its Outcome there once all has ended that
// the program has started. This is the first process of a container, and what it returns
// with an error is that there is no Outcome.
func RunJob(dir string) error {
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
	name := filepath.Join(dir, OutcomeFile)
	if err := os.RemoveAll(name); err != nil { // of the program's
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

func runJob(dir string) (*compute.Result, error) {
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
	result, err := compute.In(ctx, m, &job.Compute)
	return result, errors.Join(err, m.Stop(ctx, 0))
}

// ofEngine reports whether a variable is the engine's: by these it has programs tell it what
// they do, at an address that is none of theirs. HOME is that of the guest's user. Those of
// the image are the Machine's.
func ofEngine(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return strings.HasPrefix(name, "OTEL_") || slices.Contains([]string{"TRACEPARENT", "TRACESTATE", "BAGGAGE", "HOME"}, name)
}
