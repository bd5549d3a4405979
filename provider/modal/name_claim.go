package modal

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
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
	if r := p.decodeRecord(held.Sandbox, of); r.note.CreationID != held.CreationID || r.isAbandoned(time.Now()) {
		return "", nil
	}
	return held.Sandbox, nil
}

// releaseName releases a sandbox's name, if the sandbox has it.
func (p *Provider) releaseName(ctx context.Context, r *record) error {
	spec := &r.note.Spec
	if spec.Name == "" {
		return nil
	}
	key := nameKey(spec.Project, spec.Name)
	var held nameClaim
	at, err := p.store.readValue(ctx, kindName, key, &held)
	if at == nil || err != nil || held.Sandbox != r.ID || held.CreationID != r.note.CreationID {
		return err
	}
	if _, err = p.store.writeNext(ctx, kindName, key, at, nil); errors.Is(err, errWrittenElsewhere) {
		return nil // another sandbox has it now
	}
	return err
}

// Resolve implements atoll.Resolver.
func (p *Provider) Resolve(ctx context.Context, project, name string) (string, error) {
	if err := p.open(ctx, "get"); err != nil {
		return "", err
	}
	at, err := p.store.readLatest(ctx, subjectKey(kindName, nameKey(project, name)))
	if err != nil {
		return "", p.wrapError(ctx, "get", name, err)
	}
	id, err := p.findNameHolder(ctx, at)
	if id == "" && err == nil {
		err = atoll.E("get", name, atoll.ErrNotFound, nil)
	}
	return id, p.wrapError(ctx, "get", name, err)
}

var _ atoll.Resolver = (*Provider)(nil)
