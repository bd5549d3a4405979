package modal

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/seed46cd37a8/atoll"
)

// Probe implements atoll.Prober. It checks whether the account can be used, creates nothing
// that costs money, and always notes how Modal bills.
func (p *Provider) Probe(ctx context.Context) atoll.Probe {
	probe := p.checkAccount(ctx)
	probe.Notes = append(probe.Notes, "Modal bills sandboxes by the second, from their start to their end, by their limits of memory and CPU (modal.com/pricing); this check has made none")
	return probe
}

func (p *Provider) checkAccount(ctx context.Context) atoll.Probe {
	if p.opts.TokenID == "" || p.opts.TokenSecret == "" {
		return atoll.Probe{Reason: "it is not configured: there is no token", Fix: "export MODAL_TOKEN_ID=ak-... MODAL_TOKEN_SECRET=as-..., or run modal token new"}
	}
	if err := p.open(ctx, "probe"); err != nil {
		switch atoll.KindOf(err) {
		case atoll.ErrDenied:
			return atoll.Probe{Reason: fmt.Sprintf("%s rejects the token: %v", p.opts.ServerURL, err), Fix: "make another one with modal token new"}
		case atoll.ErrUnavailable:
			return atoll.Probe{Reason: fmt.Sprintf("%s cannot be reached: %v", p.opts.ServerURL, err), Fix: "check whether a firewall or a proxy blocks this machine"}
		}
		return atoll.Probe{Reason: err.Error()}
	}
	alive, err := p.service.listRunning(ctx, "", map[string]string{tagOwner: p.opts.Prefix})
	if err != nil {
		return atoll.Probe{Reason: "the token is valid, but Modal cannot list sandboxes: " + p.wrapError(ctx, "probe", "", err).Error()}
	}
	if _, err := p.guestProgram(); err != nil {
		var of *atoll.Error
		if errors.As(err, &of) {
			err = of.Err
		}
		return atoll.Probe{Reason: "the token is valid, but " + err.Error(), Fix: "set modal.guest to one that was built with GOARCH=amd64 make guest"}
	}
	notes := []string{
		fmt.Sprintf("reached and authenticated; %d of its sandboxes run", len(alive)),
		"Modal deletes the records of sandboxes that no atoll has read for a week",
	}
	if p.opts.Ephemeral {
		notes = append(notes, "modal.ephemeral is set: the files of a sandbox are lost with it")
	}
	if p.opts.Tunnels != TunnelsOff {
		notes = append(notes, "modal.tunnels is set: published ports are public")
	}
	return atoll.Probe{OK: true, Notes: notes}
}

// Place implements plugin.Placer. It names the environment and its contents, the same for all
// clients, whatever their tokens. Kinds: ErrInvalid, ErrDenied, ErrUnavailable.
func (p *Provider) Place(ctx context.Context) (string, error) {
	if err := p.open(ctx, "open"); err != nil {
		return "", err
	}
	workspace, err := p.service.pb.WorkspaceNameLookup(ctx, &emptypb.Empty{})
	if err != nil {
		return "", p.wrapError(ctx, "open", "modal", err)
	}
	return "modal:" + workspace.GetUsername() + "/" + p.service.environmentName() + "/" + p.opts.Prefix, nil
}

var _ atoll.Prober = (*Provider)(nil)
