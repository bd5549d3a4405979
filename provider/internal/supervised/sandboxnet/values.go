package sandboxnet

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/secretsource"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// A valueReader returns the values of the secrets of a sandbox.
type valueReader struct {
	sandbox *supervisor.Sandbox
	started time.Time // the values of the job are not older
	stores  *secretsource.Cache
}

func newValueReader(s *supervisor.Sandbox) *valueReader {
	r := &valueReader{sandbox: s, started: time.Now()}
	r.stores = secretsource.NewCache(s.Log, r.readStore)
	return r
}

// readValue returns the value of a secret: what its file has now, what its store had within the last minute, or the value of the job. It
// blocks while it reads.
func (r *valueReader) readValue(name string) (string, error) {
	job := r.sandbox.Job
	for _, s := range job.Spec.Secrets {
		if s.Name != name {
			continue
		}
		given := job.Secrets[name]
		switch {
		case secretsource.IsStore(s.Source):
			if given != "" {
				r.stores.Put(s.Source, atoll.SecretValue(given), r.started)
			}
			value, err := r.stores.Read(context.Background(), s.Source)
			return string(value), err
		case given != "":
			return given, nil
		case strings.HasPrefix(s.Source, "file:"):
			value, err := secretsource.Read(context.Background(), s.Source)
			return string(value), err
		}
		return "", errors.New("it came from the program that created the sandbox, and the sandbox has started again since: create the sandbox again, or use file:/path or a store")
	}
	return "", atoll.Errorf("secret", name, atoll.ErrNotFound, "the sandbox has no such secret")
}

// readStore reads a value in a store by the program of the job.
func (r *valueReader) readStore(ctx context.Context, source string) (atoll.SecretValue, error) {
	if p := r.sandbox.Job.SecretProgram; p != nil {
		return p.Read(ctx, source)
	}
	return "", atoll.Errorf("secret", source, atoll.ErrUnavailable, "atoll-server was not found when the sandbox started: install it, and start the sandbox again")
}
