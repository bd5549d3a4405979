package modal

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"strings"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// A volumeNote is the stored state of a volume.
type volumeNote struct {
	Volume     string    `json:"volume"` // Modal's id
	Project    string    `json:"project"`
	Name       string    `json:"name"`
	Sandbox    string    `json:"sandbox,omitempty"` // the sandbox whose data volume it is
	CreationID string    `json:"made,omitempty"`    // id of the sandbox's creation that made it; "" if it existed before, or another sandbox has used it since
	Created    time.Time `json:"created"`
}

// dataKey and volumeKey return the keys of volumes in the store. Their names at Modal are a
// prefix and the key.
func dataKey(id string) string              { return "data-" + id }
func volumeKey(project, name string) string { return "volume-" + hashWords(project, name) }

func (n names) volumeName(key string) string { return string(n) + "-" + key }

// createVolumes creates the volumes of a sandbox that do not exist.
func (p *Provider) createVolumes(ctx context.Context, c *creation) error {
	if p.opts.Ephemeral {
		return nil
	}
	if err := p.createVolume(ctx, c, dataKey(c.Spec.ID), volumeNote{Name: volume.DataName(c.Spec.ID), Sandbox: c.Spec.ID}); err != nil {
		return err
	}
	for _, m := range c.Spec.Mounts {
		if m.Type != atoll.MountVolume {
			continue
		}
		if err := p.createVolume(ctx, c, volumeKey(c.Spec.Project, m.Source), volumeNote{Name: m.Source}); err != nil {
			return err
		}
	}
	return nil
}

// createVolume creates a volume, unless it exists.
func (p *Provider) createVolume(ctx context.Context, c *creation, key string, n volumeNote) error {
	n.Project, n.CreationID, n.Created = c.Spec.Project, c.Record.Note.CreationID, time.Now().UTC()
	for {
		before, err := p.store.readLatest(ctx, subjectKey(kindVolume, key))
		if err != nil {
			return err
		}
		if before != nil && !before.Deleted {
			err = p.shareVolume(ctx, c, key, before)
		} else {
			err = remote.RunToEnd(ctx, func(ctx context.Context) error { return p.recordVolume(ctx, c, key, before, n) })
		}
		if !errors.Is(err, errWrittenElsewhere) { // otherwise another sandbox of the project has just created or used it
			return err
		}
	}
}

// shareVolume marks an existing volume so that it stays if the creation that made it fails:
// this sandbox may store files in it from now on.
func (p *Provider) shareVolume(ctx context.Context, c *creation, key string, before *revision) error {
	var have volumeNote
	if err := json.Unmarshal(before.Value, &have); err != nil {
		return err
	}
	if have.Project != c.Spec.Project {
		return atoll.Errorf("create", c.Spec.ID, atoll.ErrConflict, "the data volume of this id belongs to project %s: remove that, or use another id", have.Project)
	}
	if have.CreationID == "" || have.CreationID == c.Record.Note.CreationID {
		return nil
	}
	have.CreationID = ""
	_, err := p.store.writeNext(ctx, kindVolume, key, before, &have)
	return err
}

// recordVolume creates a volume, and stores n as the revision after before. If the creation fails,
// the volume is deleted. Errors: errWrittenElsewhere.
func (p *Provider) recordVolume(ctx context.Context, c *creation, key string, before *revision, n volumeNote) error {
	id, made, err := p.makeVolume(ctx, key)
	if err != nil {
		return err
	}
	if n.Volume = id; !made {
		n.CreationID = ""
	}
	_, err = p.store.writeNext(ctx, kindVolume, key, before, &n)
	if made && !errors.Is(err, errWrittenElsewhere) {
		c.OnUndo(func(ctx context.Context) error { return p.undoVolume(ctx, key, id, n.CreationID) })
	}
	return err
}

// makeVolume creates the Volume for that key at Modal. It returns its id, and whether it is
// new: Modal keeps Volumes that the store has forgotten, and a failed creation must not delete
// their files. A Volume counts as old if the answer to its creation was lost and the client
// asked again; if the creation fails, it is left empty.
func (p *Provider) makeVolume(ctx context.Context, key string) (id string, made bool, err error) {
	resp, err := p.service.pb.VolumeGetOrCreate(ctx, pb.VolumeGetOrCreateRequest_builder{
		DeploymentName: p.names.volumeName(key), EnvironmentName: p.service.environmentName(),
		ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS,
	}.Build())
	if !isCode(err, codes.AlreadyExists) {
		return resp.GetVolumeId(), true, err
	}
	v, err := p.findVolume(ctx, key)
	if err != nil {
		return "", false, err
	}
	return v.VolumeID, false, nil
}

// findVolume returns the Volume for that key at Modal.
func (p *Provider) findVolume(ctx context.Context, key string) (*sdk.Volume, error) {
	client, err := p.service.sdkClient()
	if err != nil {
		return nil, err
	}
	return client.Volumes.FromName(ctx, p.names.volumeName(key), nil)
}

// volumeMounts returns the Volumes of a sandbox, by path.
func (p *Provider) volumeMounts(ctx context.Context, spec *atoll.Spec) (map[string]*sdk.Volume, error) {
	program, err := p.guestVolume(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]*sdk.Volume{guestDir: program}
	if p.opts.Ephemeral {
		return all, nil
	}
	if all[atoll.DefaultWorkdir], err = p.findVolume(ctx, dataKey(spec.ID)); err != nil {
		return nil, err
	}
	for _, m := range spec.Mounts {
		v, err := p.findVolume(ctx, volumeKey(spec.Project, m.Source))
		if err != nil {
			return nil, err
		}
		if m.ReadOnly {
			v = v.ReadOnly()
		}
		all[path.Clean(m.Target)] = v
	}
	return all, nil
}

// CheckDataVolume implements remote.Volumes.
func (b backend) CheckDataVolume(ctx context.Context, r *record) error {
	var notFound sdk.NotFoundError
	_, err := b.findVolume(ctx, dataKey(r.ID))
	if errors.As(err, &notFound) {
		return remote.LostVolumeError(r.ID, b.names.volumeName(dataKey(r.ID)))
	}
	return err
}

// DropVolumesOf implements remote.Volumes.
func (b backend) DropVolumesOf(ctx context.Context, r *record) error {
	revisions, err := b.store.readAllLatest(ctx)
	for of, at := range revisions {
		key, ok := strings.CutPrefix(of, kindVolume+"/")
		var n volumeNote
		if ok && !at.Deleted && json.Unmarshal(at.Value, &n) == nil && n.CreationID != "" && n.CreationID == r.Note.CreationID {
			err = errors.Join(err, b.deleteVolume(ctx, key, r.Note.CreationID))
		}
	}
	return err
}

// DropDataVolume implements remote.Volumes.
func (b backend) DropDataVolume(ctx context.Context, id string, _ *record) error {
	return b.deleteVolume(ctx, dataKey(id), "")
}

// undoVolume deletes the volume that a creation has made, by its key in the store and Modal's id,
// even if it was not recorded, unless another sandbox has used it since. made is the id of the
// creation.
func (p *Provider) undoVolume(ctx context.Context, key, id, made string) error {
	var n volumeNote
	at, err := p.store.readValue(ctx, kindVolume, key, &n)
	if err != nil {
		return err
	}
	if at == nil {
		return p.service.dropVolume(ctx, id)
	}
	return p.deleteVolume(ctx, key, made)
}

// deleteVolume deletes a volume, unless a sandbox has it. If made is not "", it deletes only a
// volume that this creation alone has used.
func (p *Provider) deleteVolume(ctx context.Context, key, made string) error {
	var n volumeNote
	at, err := p.store.readValue(ctx, kindVolume, key, &n)
	if at == nil || err != nil || made != "" && made != n.CreationID {
		return err
	}
	if n.Sandbox == "" {
		used, err := backend{p}.UsedVolumes(ctx)
		if err != nil || used[remote.VolumeKey{Project: n.Project, Name: n.Name}] {
			return err
		}
	}
	if err := p.service.dropVolume(ctx, n.Volume); err != nil {
		return err
	}
	for gone := n.Volume; at != nil && n.Volume == gone; { // even if a creation has just shared it; that creation then fails
		if _, err = p.store.writeNext(ctx, kindVolume, key, at, nil); !errors.Is(err, errWrittenElsewhere) {
			return err
		}
		n = volumeNote{}
		if at, err = p.store.readValue(ctx, kindVolume, key, &n); err != nil {
			return err
		}
	}
	return nil // it was created again meanwhile
}

func (s *service) dropVolume(ctx context.Context, id string) error {
	_, err := s.pb.VolumeDelete(ctx, pb.VolumeDeleteRequest_builder{VolumeId: id}.Build())
	if isCode(err, codes.NotFound) {
		return nil
	}
	return err
}

// UsedVolumes implements remote.Volumes.
func (b backend) UsedVolumes(ctx context.Context) (map[remote.VolumeKey]bool, error) {
	revisions, err := b.store.readAllLatest(ctx)
	var records []*record
	for of, at := range revisions {
		if id, ok := strings.CutPrefix(of, kindSandbox+"/"); ok && !at.Deleted {
			records = append(records, b.decodeRecord(id, at))
		}
	}
	return remote.UsedVolumes(records), err
}

// ListVolumes implements remote.Volumes.
func (b backend) ListVolumes(ctx context.Context) ([]atoll.Volume, error) {
	revisions, err := b.store.readAllLatest(ctx)
	if err != nil {
		return nil, err
	}
	var list []atoll.Volume
	for of, at := range revisions {
		var n volumeNote
		if strings.HasPrefix(of, kindVolume+"/") && !at.Deleted && json.Unmarshal(at.Value, &n) == nil {
			list = append(list, atoll.Volume{Project: n.Project, Name: n.Name, Sandbox: n.Sandbox, Created: n.Created})
		}
	}
	return list, nil
}

// DeleteVolume implements remote.Volumes.
func (b backend) DeleteVolume(ctx context.Context, project, name string) error {
	key := volumeKey(project, name)
	if id := remote.SandboxOfVolume(name); id != "" {
		key = dataKey(id)
	}
	var n volumeNote
	at, err := b.store.readValue(ctx, kindVolume, key, &n)
	if err != nil {
		return err
	}
	if at == nil || n.Project != project {
		return remote.NoVolumeError(project, name)
	}
	used, err := b.UsedVolumes(ctx)
	if err != nil {
		return err
	}
	if used[remote.VolumeKey{Project: project, Name: n.Name}] {
		return remote.VolumeInUseError(name)
	}
	return b.deleteVolume(ctx, key, "")
}

// RemoveProject implements atoll.ProjectRemover. It removes the sandboxes and volumes of the
// project.
func (p *Provider) RemoveProject(ctx context.Context, project string) error {
	return volume.RemoveProject(ctx, p, project)
}

var (
	_ atoll.VolumeStore    = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
)
