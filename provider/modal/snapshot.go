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
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// A snapshotNote is what is written down of a snapshot: an image of Modal's.
type snapshotNote struct {
	Image   string     `json:"image"`
	Sandbox string     `json:"sandbox"`
	Spec    atoll.Spec `json:"spec"`
	Created time.Time  `json:"created"`
}

// snapshotTimeout is how long Modal may take to copy the files of a sandbox.
const snapshotTimeout = 55 * time.Second

// Snapshot implements atoll.Snapshotter: its files are copied, and no processes.
func (s *sandbox) Snapshot(ctx context.Context) (snap atoll.Snapshot, err error) {
	err = s.withLockedRecord(ctx, "snapshot", func(r *record) error {
		if err := requireRunning("snapshot", &r.Status); err != nil {
			return err
		}
		var taken atoll.Snapshot
		err := guestproc.Detached(ctx, &s.p.work, snapshotTimeout+cleanupTimeout, func(whole context.Context) (err error) {
			taken, err = s.takeSnapshot(whole, ctx, r)
			return err
		})
		if err == nil {
			snap = taken
		}
		return err
	})
	return snap, err
}

// takeSnapshot makes a snapshot, unless waits ends: what Modal has begun it finishes, and only who
// has its answer can say which image that is to delete.
func (s *sandbox) takeSnapshot(ctx, waits context.Context, r *record) (atoll.Snapshot, error) {
	image, err := s.p.service.snapshotFiles(ctx, r.note.Life)
	if err != nil {
		return atoll.Snapshot{}, err
	}
	n := snapshotNote{Image: image, Sandbox: s.id, Spec: r.note.Spec, Created: time.Now().UTC()}
	id := atoll.NewID()
	err = runToEnd(waits, func(ctx context.Context) error {
		_, err := s.p.store.writeNext(ctx, kindSnapshot, id, nil, &n)
		return err
	})
	if err != nil {
		return atoll.Snapshot{}, errors.Join(err, runCleanup(func(ctx context.Context) error { return s.p.service.dropImage(ctx, image) }))
	}
	return n.toSnapshot(id), nil
}

// snapshotFiles copies the files of a life into an image, whose id it returns.
func (s *service) snapshotFiles(ctx context.Context, life string) (string, error) {
	resp, err := s.pb.SandboxSnapshotFs(ctx, pb.SandboxSnapshotFsRequest_builder{SandboxId: life, Timeout: float32(snapshotTimeout.Seconds())}.Build())
	if err != nil {
		return "", err
	}
	if result := resp.GetResult(); result != nil && result.GetStatus() != pb.GenericResult_GENERIC_STATUS_SUCCESS {
		return "", atoll.Errorf("snapshot", life, atoll.ErrUnavailable, "Modal cannot copy its files: %s", result.GetException())
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
	return atoll.Snapshot{ID: id, Provider: "modal", Sandbox: n.Sandbox, Spec: n.Spec, Version: n.Image, Created: n.Created}
}

// Snapshots implements atoll.SnapshotStore.
func (p *Provider) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	if err := p.open(ctx, "snapshots"); err != nil {
		return nil, err
	}
	pages, err := p.store.readAllLatest(ctx)
	if err != nil {
		return nil, p.wrapError(ctx, "snapshots", "", err)
	}
	var list []atoll.Snapshot
	for of, at := range pages {
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
	return p.wrapError(ctx, "remove snapshot", id, runToEnd(ctx, func(ctx context.Context) error {
		if err := p.service.dropImage(ctx, n.Image); err != nil {
			return err
		}
		_, err := p.store.writeNext(ctx, kindSnapshot, id, at, nil)
		if errors.Is(err, errWrittenElsewhere) {
			return nil // somebody else has removed it
		}
		return err
	}))
}

// snapshotImage is the image that a snapshot is.
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
	image, err := client.Images.FromID(ctx, n.Image)
	var gone sdk.NotFoundError
	if errors.As(err, &gone) {
		return nil, atoll.Errorf("create", "", atoll.ErrNotExist, "the image %s of snapshot %s was deleted by somebody else", n.Image, id)
	}
	return &builtImage{image, "snapshot@" + n.Image}, err
}

var (
	_ atoll.Snapshotter   = (*sandbox)(nil)
	_ atoll.SnapshotStore = (*Provider)(nil)
)
