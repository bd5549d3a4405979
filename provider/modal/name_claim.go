package modal

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// A nameClaim is the value of a name: the sandbox that has it.
type nameClaim struct {
	Sandbox    string `json:"sandbox"`
	CreationID string `json:"made"` // of the sandbox's record, as another sandbox may have the same id later
}

func nameKey(project, name string) string { return hashWords(project, name) }

// findNameHolder returns the sandbox that has the name with that revision; "" if none has,
// because it was removed without releasing the name.
func (p *Provider) findNameHolder(ctx context.Context, at *revision) (string, error) {
	var held nameClaim
	if at == nil || at.Deleted || json.Unmarshal(at.Value, &held) != nil {
		return "", nil
	}
	of, err := p.store.readLatest(ctx, subjectKey(kindSandbox, held.Sandbox))
	if of == nil || of.Deleted || err != nil {
		return "", err
	}
	if r := p.decodeRecord(held.Sandbox, of); r.Note.CreationID != held.CreationID || r.Note.IsAbandoned(time.Now()) {
		return "", nil
	}
	return held.Sandbox, nil
}

// ClaimName implements remote.Records.
func (b backend) ClaimName(ctx context.Context, r *record) (holder string, err error) {
	key := nameKey(r.Note.Spec.Project, r.Note.Spec.Name)
	for {
		before, err := b.store.readLatest(ctx, subjectKey(kindName, key))
		if err != nil {
			return "", err
		}
		if holder, err := b.findNameHolder(ctx, before); holder != "" || err != nil {
			return holder, err
		}
		err = remote.RunToEnd(ctx, func(ctx context.Context) error {
			_, err := b.store.writeNext(ctx, kindName, key, before, &nameClaim{Sandbox: r.ID, CreationID: r.Note.CreationID})
			return err
		})
		if !errors.Is(err, errWrittenElsewhere) {
			return "", err
		}
	}
}

// ReleaseName implements remote.Records.
func (b backend) ReleaseName(ctx context.Context, r *record) error {
	key := nameKey(r.Note.Spec.Project, r.Note.Spec.Name)
	var held nameClaim
	at, err := b.store.readValue(ctx, kindName, key, &held)
	if at == nil || err != nil || held.Sandbox != r.ID || held.CreationID != r.Note.CreationID {
		return err
	}
	if _, err = b.store.writeNext(ctx, kindName, key, at, nil); errors.Is(err, errWrittenElsewhere) {
		return nil // another sandbox has it now
	}
	return err
}

// Resolve implements remote.Records.
func (b backend) Resolve(ctx context.Context, project, name string) (string, error) {
	at, err := b.store.readLatest(ctx, subjectKey(kindName, nameKey(project, name)))
	if err != nil {
		return "", err
	}
	id, err := b.findNameHolder(ctx, at)
	if id == "" && err == nil {
		err = atoll.E("get", name, atoll.ErrNotFound, nil)
	}
	return id, err
}
