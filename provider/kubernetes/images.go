package kubernetes

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// Prepare implements atoll.Preparer. It only validates the spec: the node of a sandbox is not
// known beforehand, and nodes pull images themselves.
func (p *Provider) Prepare(ctx context.Context, spec *atoll.Spec, _ func(atoll.Progress)) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	return ctx.Err()
}

var _ atoll.Preparer = (*Provider)(nil)
