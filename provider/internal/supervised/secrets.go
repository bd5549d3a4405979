package supervised

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/egress"
	"github.com/seed46cd37a8/atoll/internal/secretsource"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// prepareSecrets checks the network of a spec, and takes the values of its secrets out of it: the spec then has placeholders only, those of
// its snapshot if there are some, since the processes in that have them. It returns the values by name.
func (p *Provider) prepareSecrets(ctx context.Context, spec *atoll.Spec) (map[string]string, error) {
	if _, err := egress.New(spec.Network, spec.Secrets); err != nil {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "network: %w", err)
	}
	values := map[string]string{}
	var before []atoll.Secret
	if spec.Snapshot != "" {
		if snap, err := p.readSnapshot(spec.Snapshot); err == nil { // otherwise the creation fails soon
			before = snap.Record.Status.Spec.Secrets
		}
	}
	for i := range spec.Secrets {
		s := &spec.Secrets[i]
		for _, old := range before {
			if old.Name == s.Name {
				s.Placeholder = cmp.Or(s.Placeholder, old.Placeholder)
			}
		}
		value := s.Value
		if value == "" {
			var err error
			if value, err = secretsource.Read(ctx, s.Source); err != nil {
				return nil, atoll.Errorf("create", spec.Name, atoll.KindOf(err), "secret %s: %w", s.Name, err)
			}
		}
		if s.Placeholder == "" {
			s.Placeholder = secretsource.NewPlaceholder(value)
		}
		values[s.Name], s.Value = string(value), ""
	}
	return values, nil
}

// readSecrets returns the values of the secrets of a sandbox that is about to start, as far as this process knows them or can read them. The
// supervisor reads files and stores by itself.
func (p *Provider) readSecrets(ctx context.Context, rec *statedir.Record) map[string]string {
	values := map[string]string{}
	for _, s := range rec.Status.Spec.Secrets {
		value, known := rec.Secrets[s.Name]
		switch {
		case known && !strings.HasPrefix(s.Source, "file:"):
			values[s.Name] = value
		case strings.HasPrefix(s.Source, "env:"):
			if v, err := secretsource.Read(ctx, s.Source); err == nil {
				values[s.Name] = string(v)
			} else {
				p.log.Warn("start: a secret has no value", "sandbox", rec.Status.ID, "secret", s.Name, "err", err)
			}
		}
	}
	return values
}

// findSecretProgram returns the program by which the supervisor of a sandbox reads secrets in stores, nil if it has none there.
func (p *Provider) findSecretProgram(rec *statedir.Record) *secretsource.Program {
	if !slices.ContainsFunc(rec.Status.Spec.Secrets, func(s atoll.Secret) bool { return secretsource.IsStore(s.Source) }) {
		return nil
	}
	program, err := secretsource.FindProgram()
	if err != nil {
		p.log.Warn("start: secrets in stores have no values", "sandbox", rec.Status.ID, "err", err)
		return nil
	}
	return &program
}
