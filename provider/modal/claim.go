package modal

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A claim is what a name's page says: whose it is.
type nameClaim struct {
	Sandbox string `json:"sandbox"`
	Made    string `json:"made"` // of its record, as another may have the same id later
}

func nameKey(project, name string) string { return hashWords(project, name) }

// findNameHolder is the sandbox that has the name whose page that is; "" if none has it, as one
// that went has not given it up.
func (p *Provider) findNameHolder(ctx context.Context, at *revision) (string, error) {
	var held nameClaim
	if at == nil || at.Deleted || json.Unmarshal(at.Value, &held) != nil {
		return "", nil
	}
	of, err := p.store.readLatest(ctx, subjectKey(kindSandbox, held.Sandbox))
	if of == nil || of.Deleted || err != nil {
		return "", err
	}
	if r := p.decodeRecord(held.Sandbox, of); r.note.Made != held.Made || r.isAbandoned(time.Now()) {
		return "", nil
	}
	return held.Sandbox, nil
}

// releaseName gives up a sandbox's name, if it has it.
func (p *Provider) releaseName(ctx context.Context, r *record) error {
	spec := &r.note.Spec
	if spec.Name == "" {
		return nil
	}
	key := nameKey(spec.Project, spec.Name)
	var held nameClaim
	at, err := p.store.readValue(ctx, kindName, key, &held)
	if at == nil || err != nil || held.Sandbox != r.ID || held.Made != r.note.Made {
		return err
	}
	if _, err = p.store.writeNext(ctx, kindName, key, at, nil); errors.Is(err, errWrittenElsewhere) {
		return nil // somebody else has it by now
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
