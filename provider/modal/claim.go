package modal

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A claim is what a name's page says: whose it is.
type claim struct {
	Sandbox string `json:"sandbox"`
	Made    string `json:"made"` // of its record, as another may have the same id later
}

func nameKey(project, name string) string { return hash(project, name) }

// holder is the sandbox that has the name whose page that is; "" if none has it, as one
// that went has not given it up.
func (p *Provider) holder(ctx context.Context, at *page) (string, error) {
	var held claim
	if at == nil || at.Over || json.Unmarshal(at.Text, &held) != nil {
		return "", nil
	}
	of, err := p.book.turn(ctx, subject(kindSandbox, held.Sandbox))
	if of == nil || of.Over || err != nil {
		return "", err
	}
	if r := p.decode(held.Sandbox, of); r.note.Made != held.Made || r.abandoned(time.Now()) {
		return "", nil
	}
	return held.Sandbox, nil
}

// unname gives up a sandbox's name, if it has it.
func (p *Provider) unname(ctx context.Context, r *record) error {
	spec := &r.note.Spec
	if spec.Name == "" {
		return nil
	}
	key := nameKey(spec.Project, spec.Name)
	var held claim
	at, err := p.book.read(ctx, kindName, key, &held)
	if at == nil || err != nil || held.Sandbox != r.ID || held.Made != r.note.Made {
		return err
	}
	if _, err = p.book.write(ctx, kindName, key, at, nil); errors.Is(err, errTurned) {
		return nil // somebody else has it by now
	}
	return err
}

// Resolve implements atoll.Resolver.
func (p *Provider) Resolve(ctx context.Context, project, name string) (string, error) {
	if err := p.open(ctx, "get"); err != nil {
		return "", err
	}
	at, err := p.book.turn(ctx, subject(kindName, nameKey(project, name)))
	if err != nil {
		return "", p.failed(ctx, "get", name, err)
	}
	id, err := p.holder(ctx, at)
	if id == "" && err == nil {
		err = atoll.E("get", name, atoll.ErrNotFound, nil)
	}
	return id, p.failed(ctx, "get", name, err)
}

var _ atoll.Resolver = (*Provider)(nil)
