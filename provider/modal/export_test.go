package modal

import (
	"context"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
)

// OnStep sets a function that is called before each step of a creation and of a start.
func OnStep(opts *Options, step func(name string) error) { opts.step = step }

// PollEvery sets the interval of Watch.
func PollEvery(opts *Options, d time.Duration) { opts.pollInterval = d }

// Making sets the lease of creations and starts.
func Making(opts *Options, d time.Duration) { opts.leaseTTL = d }

// ReportEnds sets the time in which Modal has to report the end of an instance.
func ReportEnds(opts *Options, d time.Duration) { opts.endTimeout = d }

// Silence sets the time without a word after which the guest's programs end.
func Silence(opts *Options, d time.Duration) { opts.silenceTimeout = d }

// Long sets the longest run of an instance.
func Long(opts *Options, d time.Duration) { opts.maxLifetime = d }

// MakeSecret creates a Secret of the account, for which the SDK has no call.
func (p *Provider) MakeSecret(ctx context.Context, name string, variables map[string]string) error {
	if err := p.open(ctx, "test"); err != nil {
		return err
	}
	_, err := p.service.pb.SecretGetOrCreate(ctx, pb.SecretGetOrCreateRequest_builder{
		DeploymentName: name, ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING, EnvDict: variables,
	}.Build())
	return err
}

// Boxes returns the names of an app's instances at Modal, by id.
func (p *Provider) Boxes(ctx context.Context) (map[string]string, error) {
	if err := p.open(ctx, "test"); err != nil {
		return nil, err
	}
	app, err := p.findApp(ctx, atoll.DefaultProject)
	if err != nil {
		return nil, err
	}
	all, err := p.service.listRunning(ctx, "", nil)
	names := map[string]string{}
	for id, info := range all {
		if info.GetAppId() == app.AppID {
			names[id] = info.GetName()
		}
	}
	return names, err
}

// End ends an instance at Modal without the provider's knowledge.
func (p *Provider) End(ctx context.Context, id string) error {
	return p.service.terminateInstance(ctx, id)
}

// Scrap deletes the Dicts. No other call of p may follow, as its sweep would create them again.
func (p *Provider) Scrap(ctx context.Context) error {
	if err := p.service.open(ctx); err != nil {
		return err
	}
	for _, b := range []*store{p.store, p.outputs} {
		err := b.withDict(ctx, func(dict string) error {
			_, err := b.service.pb.DictDelete(ctx, pb.DictDeleteRequest_builder{DictId: dict}.Build())
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Forget makes Modal forget all entries, as it does after a week.
func (p *Provider) Forget(ctx context.Context) error {
	for _, b := range []*store{p.store, p.outputs} {
		err := b.withDict(ctx, func(dict string) error {
			_, err := b.service.pb.DictClear(ctx, pb.DictClearRequest_builder{DictId: dict}.Build())
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
