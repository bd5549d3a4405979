package kubernetes

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// Prepare implements atoll.Preparer: which node is to run the sandbox is not known
// before, and nodes pull images of their own.
func (p *Provider) Prepare(ctx context.Context, spec *atoll.Spec, _ func(atoll.Progress)) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	return ctx.Err()
}

var _ atoll.Preparer = (*Provider)(nil)
