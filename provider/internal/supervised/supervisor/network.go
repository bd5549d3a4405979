package supervisor

import (
	"context"
	"errors"

	"github.com/seed46cd37a8/atoll"
)

// SetNetworkUpdater has UpdateNetwork call update, which changes the policy of the engine's network at once, or says why that is not possible.
func (s *Sandbox) SetNetworkUpdater(update func(atoll.Network) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updateNetwork = update
}

// UpdateNetwork changes the network policy, now and for later starts.
func (s *Sandbox) UpdateNetwork(_ context.Context, change atoll.NetworkChange) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.record.Status.WithNetwork(change)
	if err != nil {
		return err
	}
	if s.ending != nil {
		return atoll.E("network", s.ID(), atoll.ErrStopped, nil)
	}
	if s.updateNetwork == nil {
		return atoll.E("network", s.ID(), atoll.ErrUnsupported, nil)
	}
	before := s.record.Status.Spec.Network
	s.record.Status.Spec.Network = st.Spec.Network
	if err := s.saveRecord(); err != nil {
		s.record.Status.Spec.Network = before
		return atoll.E("network", s.ID(), bootKind(err), err)
	}
	if err := s.updateNetwork(st.Spec.Network); err != nil {
		s.record.Status.Spec.Network = before
		return atoll.E("network", s.ID(), atoll.KindOf(err), errors.Join(err, s.saveRecord()))
	}
	return nil
}
