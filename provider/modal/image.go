package modal

import (
	"cmp"
	"context"

	sdk "github.com/modal-labs/libmodal/modal-go"
	"google.golang.org/grpc/codes"

	"github.com/seed46cd37a8/atoll"
)

// A builtImage is an image that Modal has built.
type builtImage struct {
	*sdk.Image
	ref string // the reference and the id: "ubuntu:22.04@im-..."
}

// sandboxImage returns the image of a sandbox. Modal builds it unless it has done so before.
// Kinds: ErrNotExist, ErrInvalid, ErrUnavailable.
func (p *Provider) sandboxImage(ctx context.Context, spec *atoll.Spec) (*builtImage, error) {
	if spec.Snapshot != "" {
		return p.snapshotImage(ctx, spec.Snapshot)
	}
	ref := cmp.Or(spec.Image, p.opts.Image)
	return p.images.getOrFetch(ctx, ref, func() (*builtImage, error) {
		app, err := p.findApp(ctx, spec.Project)
		if err != nil {
			return nil, err
		}
		patience, cancel := context.WithTimeout(ctx, p.opts.Patience)
		defer cancel()
		image, err := p.buildImage(patience, app, ref)
		for try := 1; try < buildTries && isCode(err, codes.Unavailable) && patience.Err() == nil; try++ {
			image, err = p.buildImage(patience, app, ref) // the build continues where it is
		}
		switch {
		case err == nil:
			return &builtImage{image, ref + "@" + image.ImageID}, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case contextEnded(patience, err): // Modal may see the deadline first
			return nil, atoll.Errorf("create", "", atoll.ErrUnavailable, "image %s was not built within %s: raise modal.patience", ref, p.opts.Patience)
		}
		return nil, imageError(ref, err)
	})
}

// buildTries is the number of attempts to follow a build whose stream breaks off.
const buildTries = 5

func (p *Provider) buildImage(ctx context.Context, app *sdk.App, ref string) (*sdk.Image, error) {
	client, err := p.service.sdkClient()
	if err != nil {
		return nil, err
	}
	var params sdk.ImageFromRegistryParams
	if p.opts.RegistrySecret != "" {
		secret, err := p.findSecrets(ctx, []string{p.opts.RegistrySecret})
		if err != nil {
			return nil, err
		}
		params.Secret = secret[0]
	}
	return client.Images.FromRegistry(ref, &params).DockerfileCommands(p.opts.Commands, nil).Build(ctx, app)
}
