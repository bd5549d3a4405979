package modal

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// A snapshotNote is the stored state of a snapshot, which is an image at Modal.
type snapshotNote struct {
	ImageID string     `json:"image"`
	Sandbox string     `json:"sandbox"`
	Spec    atoll.Spec `json:"spec"`
	Created time.Time  `json:"created"`
}

// snapshotTimeout bounds how long Modal takes to copy the files of a sandbox.
const snapshotTimeout = 55 * time.Second

// Snapshot implements atoll.Snapshotter. It copies the files, but no processes, and not the data
// volume, which is a Volume of Modal. If ctx ends while Snapshot records the copy, it still finishes
// and returns the snapshot.
func (s *sandbox) Snapshot(ctx context.Context, _ ...atoll.SnapshotOption) (snap atoll.Snapshot, err error) {
	err = s.WithLockedRecord(ctx, "snapshot", func(r *record) error {
		if err := remote.RequireRunning("snapshot", &r.Status); err != nil {
			return err
		}
		image, err := s.copyFiles(ctx, r.Note.Run)
		if err != nil {
			return err
		}
		n := snapshotNote{ImageID: image, Sandbox: s.ID(), Spec: r.Note.Spec, Created: time.Now().UTC()}
		id := atoll.NewID()
		err = remote.RunToEnd(ctx, func(ctx context.Context) error {
			_, err := s.p.store.writeNext(ctx, kindSnapshot, id, nil, &n)
			return err
		})
		if err != nil {
			return errors.Join(err, s.dropCopy(image))
		}
		snap = n.toSnapshot(id)
		return nil
	})
	return snap, err
}

// copyFiles copies the files of an instance into an image, and returns its id. If ctx ends first,
// a goroutine deletes the image: Modal finishes a copy that it has begun, and only its answer
// names the image.
func (s *sandbox) copyFiles(ctx context.Context, instanceID string) (string, error) {
	type result struct {
		image string
		err   error
	}
	copied := make(chan result) // not buffered, so that either copyFiles receives an image or the goroutine deletes it
	s.p.engine.Work.Go(func() {
		whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), snapshotTimeout+remote.CleanupTimeout)
		defer cancel()
		image, err := s.p.service.snapshotFiles(whole, instanceID)
		select {
		case copied <- result{image, err}:
		case <-ctx.Done():
			if err == nil {
				err = s.dropCopy(image)
			}
			if err != nil {
				s.p.engine.Log.Warn("snapshot: undo", "sandbox", s.ID(), "err", err)
			}
		}
	})
	select {
	case r := <-copied:
		return r.image, r.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// dropCopy deletes the image of a snapshot that was not recorded.
func (s *sandbox) dropCopy(image string) error {
	return remote.RunCleanup(func(ctx context.Context) error { return s.p.service.dropImage(ctx, image) })
}

// snapshotFiles copies the files of an instance into an image, and returns its id.
func (s *service) snapshotFiles(ctx context.Context, instanceID string) (string, error) {
	resp, err := s.pb.SandboxSnapshotFs(ctx, pb.SandboxSnapshotFsRequest_builder{SandboxId: instanceID, Timeout: float32(snapshotTimeout.Seconds())}.Build())
	if err != nil {
		return "", err
	}
	if result := resp.GetResult(); result != nil && result.GetStatus() != pb.GenericResult_GENERIC_STATUS_SUCCESS {
		return "", atoll.Errorf("snapshot", instanceID, atoll.ErrUnavailable, "Modal cannot copy its files: %s", result.GetException())
	}
	return resp.GetImageId(), nil
}

func (s *service) dropImage(ctx context.Context, image string) error {
	_, err := s.pb.ImageDelete(ctx, pb.ImageDeleteRequest_builder{ImageId: image}.Build())
	if isCode(err, codes.NotFound) {
		return nil
	}
	return err
}

func (n *snapshotNote) toSnapshot(id string) atoll.Snapshot {
	return atoll.Snapshot{ID: id, Provider: "modal", Sandbox: n.Sandbox, Spec: n.Spec, Version: n.ImageID, Created: n.Created}
}

// Snapshots implements atoll.SnapshotStore.
func (p *Provider) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	if err := p.open(ctx, "snapshots"); err != nil {
		return nil, err
	}
	revisions, err := p.store.readAllLatest(ctx)
	if err != nil {
		return nil, p.wrapError(ctx, "snapshots", "", err)
	}
	var list []atoll.Snapshot
	for of, at := range revisions {
		id, ok := strings.CutPrefix(of, kindSnapshot+"/")
		var n snapshotNote
		if ok && !at.Deleted && json.Unmarshal(at.Value, &n) == nil {
			list = append(list, n.toSnapshot(id))
		}
	}
	slices.SortFunc(list, func(a, b atoll.Snapshot) int { return a.Created.Compare(b.Created) })
	return list, nil
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (p *Provider) RemoveSnapshot(ctx context.Context, id string) error {
	if err := p.open(ctx, "remove snapshot"); err != nil {
		return err
	}
	var n snapshotNote
	at, err := p.store.readValue(ctx, kindSnapshot, id, &n)
	if err != nil {
		return p.wrapError(ctx, "remove snapshot", id, err)
	}
	if at == nil {
		return atoll.Errorf("remove snapshot", id, atoll.ErrNotExist, "no snapshot %q", id)
	}
	return p.wrapError(ctx, "remove snapshot", id, remote.RunToEnd(ctx, func(ctx context.Context) error {
		if err := p.service.dropImage(ctx, n.ImageID); err != nil {
			return err
		}
		_, err := p.store.writeNext(ctx, kindSnapshot, id, at, nil)
		if errors.Is(err, errWrittenElsewhere) {
			return nil // another program has removed it
		}
		return err
	}))
}

// snapshotImage returns the image of a snapshot.
func (p *Provider) snapshotImage(ctx context.Context, id string) (*builtImage, error) {
	var n snapshotNote
	at, err := p.store.readValue(ctx, kindSnapshot, id, &n)
	if err != nil {
		return nil, err
	}
	if at == nil {
		return nil, atoll.Errorf("create", "", atoll.ErrNotExist, "no snapshot %q", id)
	}
	client, err := p.service.sdkClient()
	if err != nil {
		return nil, err
	}
	image, err := client.Images.FromID(ctx, n.ImageID)
	var gone sdk.NotFoundError
	if errors.As(err, &gone) {
		return nil, atoll.Errorf("create", "", atoll.ErrNotExist, "the image %s of snapshot %s was deleted by somebody else", n.ImageID, id)
	}
	return &builtImage{image, "snapshot@" + n.ImageID}, err
}

var (
	_ atoll.Snapshotter   = (*sandbox)(nil)
	_ atoll.SnapshotStore = (*Provider)(nil)
)
