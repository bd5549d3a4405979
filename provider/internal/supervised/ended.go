package supervised

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// endedProcess returns the ended process with that id; nil unless it is the main process of
// a sandbox that has ended.
func (s *sandbox) endedProcess(id string) atoll.Process {
	if id != atoll.MainProcess {
		return nil
	}
	p, _ := s.endedMain()
	return p
}

// endedMain returns the main process of an ended sandbox, as its supervisor saved it; nil
// if it saved none, or if the sandbox runs. The record decides that, because a lingering
// supervisor still answers for a while.
func (s *sandbox) endedMain() (atoll.Process, atoll.ProcessStatus) {
	rec, err := s.p.readRecord("process", s.id)
	if err != nil || isLive(rec.Status.State) {
		return nil, atoll.ProcessStatus{}
	}
	p, st, err := supervisor.LoadMain(s.p.dir.Sandbox(s.id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.p.log.Warn("cannot read the saved main process", "sandbox", s.id, "err", err)
	}
	return p, st
}

// Refusals implements atoll.Refuser.
func (s *sandbox) Refusals(ctx context.Context) (atoll.Refusals, error) {
	rec, err := s.p.readRecord("refusals", s.id)
	switch {
	case err != nil:
		return atoll.Refusals{}, err
	case !rec.Status.Caps.Refusals:
		return atoll.Refusals{}, atoll.E("refusals", s.id, atoll.ErrUnsupported, nil)
	case rec.Status.Spec.Network.Mode == atoll.NetworkNone:
		return atoll.Refusals{NoNetwork: true, List: []atoll.Refusal{}, Time: time.Now().UTC()}, nil
	}
	if isLive(rec.Status.State) {
		all, err := atoll.RefusalsOf(ctx, s.remoteSandbox())
		if err = s.explainError(ctx, "refusals", err); atoll.KindOf(err) != atoll.ErrStopped {
			return all, err
		}
	}
	all, err := supervisor.LoadRefusals(s.p.dir.Sandbox(s.id))
	if err != nil {
		return all, atoll.E("refusals", s.id, atoll.ErrInternal, err)
	}
	return all, nil
}

// NetworkLog implements atoll.NetworkLogger.
func (s *sandbox) NetworkLog(ctx context.Context, after int64, wait time.Duration) (atoll.NetworkLog, error) {
	rec, err := s.p.readRecord("network log", s.id)
	switch {
	case err != nil:
		return atoll.NetworkLog{}, err
	case !rec.Status.Caps.NetworkLog:
		return atoll.NetworkLog{}, atoll.E("network log", s.id, atoll.ErrUnsupported, nil)
	case rec.Status.Spec.Network.Mode == atoll.NetworkNone:
		return atoll.NetworkLog{NoNetwork: true, Events: []atoll.NetworkEvent{}, First: 1}, nil
	}
	if isLive(rec.Status.State) {
		all, err := atoll.NetworkLogOf(ctx, s.remoteSandbox(), after, wait)
		if err = s.explainError(ctx, "network log", err); atoll.KindOf(err) != atoll.ErrStopped {
			return all, err
		}
	}
	all, err := supervisor.LoadNetLog(s.p.dir.Sandbox(s.id))
	if err != nil {
		return all, atoll.E("network log", s.id, atoll.ErrInternal, err)
	}
	return supervisor.CutNetLog(all, after), nil
}
