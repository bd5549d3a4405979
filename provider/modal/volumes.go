package modal

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"github.com/seed46cd37a8/atoll"
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
func (c *creation) createVolumes(ctx context.Context) error {
	if c.p.opts.Ephemeral {
		return nil
	}
	if err := c.createVolume(ctx, dataKey(c.spec.ID), volumeNote{Name: volume.DataName(c.spec.ID), Sandbox: c.spec.ID}); err != nil {
		return err
	}
	for _, m := range c.spec.Mounts {
		if m.Type != atoll.MountVolume {
			continue
		}
		if err := c.createVolume(ctx, volumeKey(c.spec.Project, m.Source), volumeNote{Name: m.Source}); err != nil {
			return err
		}
	}
	return nil
}

// createVolume creates a volume, unless it exists.
func (c *creation) createVolume(ctx context.Context, key string, n volumeNote) error {
	n.Project, n.CreationID, n.Created = c.spec.Project, c.r.note.CreationID, time.Now().UTC()
	for {
		before, err := c.p.store.readLatest(ctx, subjectKey(kindVolume, key))
		if err != nil {
			return err
		}
		if before != nil && !before.Deleted {
			err = c.shareVolume(ctx, key, before)
		} else {
			err = runToEnd(ctx, func(ctx context.Context) error { return c.makeVolume(ctx, key, before, n) })
		}
		if !errors.Is(err, errWrittenElsewhere) { // otherwise another sandbox of the project has just created or used it
			return err
		}
	}
}

// shareVolume marks an existing volume so that it stays if the creation that made it fails:
// this sandbox may store files in it from now on.
func (c *creation) shareVolume(ctx context.Context, key string, before *revision) error {
	var have volumeNote
	if err := json.Unmarshal(before.Value, &have); err != nil {
		return err
	}
	if have.Project != c.spec.Project {
		return atoll.Errorf("create", c.spec.ID, atoll.ErrConflict, "the data volume of this id belongs to project %s: remove that, or use another id", have.Project)
	}
	if have.CreationID == "" || have.CreationID == c.r.note.CreationID {
		return nil
	}
	have.CreationID = ""
	_, err := c.p.store.writeNext(ctx, kindVolume, key, before, &have)
	return err
}

// makeVolume creates a volume, and stores n as the revision after before. Errors:
// errWrittenElsewhere.
func (c *creation) makeVolume(ctx context.Context, key string, before *revision, n volumeNote) error {
	id, made, err := c.p.makeVolume(ctx, key)
	if err != nil {
		return err
	}
	if n.Volume = id; !made {
		n.CreationID = ""
	}
	_, err = c.p.store.writeNext(ctx, kindVolume, key, before, &n)
	if made && !errors.Is(err, errWrittenElsewhere) {
		c.made = append(c.made, madeVolume{key, id})
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

// checkDataVolume returns an error if a sandbox's data volume was deleted: an empty volume in
// its place would hide the loss.
func (p *Provider) checkDataVolume(ctx context.Context, r *record) error {
	if !r.note.Volume {
		return nil
	}
	var notFound sdk.NotFoundError
	_, err := p.findVolume(ctx, dataKey(r.ID))
	if errors.As(err, &notFound) {
		return atoll.Errorf("start", r.ID, atoll.ErrUnavailable, "its data volume %s was deleted by somebody else: its files are lost; remove the sandbox and create it again", p.names.volumeName(dataKey(r.ID)))
	}
	return err
}

// deleteVolumesOf deletes the volumes that an abandoned creation has made.
func (p *Provider) deleteVolumesOf(ctx context.Context, r *record) error {
	revisions, err := p.store.readAllLatest(ctx)
	for of, at := range revisions {
		key, ok := strings.CutPrefix(of, kindVolume+"/")
		var n volumeNote
		if ok && !at.Deleted && json.Unmarshal(at.Value, &n) == nil && n.CreationID != "" && n.CreationID == r.note.CreationID {
			err = errors.Join(err, p.deleteVolume(ctx, key, r.note.CreationID))
		}
	}
	return err
}

// dropDataVolume deletes the data volume of a sandbox.
func (p *Provider) dropDataVolume(ctx context.Context, id string) error {
	return p.deleteVolume(ctx, dataKey(id), "")
}

// A madeVolume is a volume that a creation has made, by its key in the store and Modal's id.
type madeVolume struct{ key, id string }

// undoCreate deletes the volume, even if it was not recorded, unless another sandbox has used
// it since. made is the id of the creation.
func (v madeVolume) undoCreate(ctx context.Context, p *Provider, made string) error {
	var n volumeNote
	at, err := p.store.readValue(ctx, kindVolume, v.key, &n)
	if err != nil {
		return err
	}
	if at == nil {
		return p.service.dropVolume(ctx, v.id)
	}
	return p.deleteVolume(ctx, v.key, made)
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
		used, err := p.usedVolumes(ctx)
		if used[key] || err != nil {
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

// usedVolumes returns the keys of the volumes of all sandboxes, running or stopped.
func (p *Provider) usedVolumes(ctx context.Context) (map[string]bool, error) {
	revisions, err := p.store.readAllLatest(ctx)
	used := map[string]bool{}
	for of, at := range revisions {
		id, ok := strings.CutPrefix(of, kindSandbox+"/")
		if !ok || at.Deleted {
			continue
		}
		r := p.decodeRecord(id, at)
		if r.note.Volume {
			used[dataKey(id)] = true
		}
		for _, m := range r.note.Spec.Mounts {
			if m.Type == atoll.MountVolume {
				used[volumeKey(r.note.Spec.Project, m.Source)] = true
			}
		}
	}
	return used, err
}

// Volumes implements atoll.VolumeStore.
func (p *Provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	if p.opts.Ephemeral {
		return nil, atoll.E("volumes", "modal", atoll.ErrUnsupported, nil)
	}
	if err := p.open(ctx, "volumes"); err != nil {
		return nil, err
	}
	used, err := p.usedVolumes(ctx)
	if err != nil {
		return nil, p.wrapError(ctx, "volumes", project, err)
	}
	revisions, err := p.store.readAllLatest(ctx)
	if err != nil {
		return nil, p.wrapError(ctx, "volumes", project, err)
	}
	var list []atoll.Volume
	for of, at := range revisions {
		key, ok := strings.CutPrefix(of, kindVolume+"/")
		var n volumeNote
		if !ok || at.Deleted || json.Unmarshal(at.Value, &n) != nil || project != "" && n.Project != project {
			continue
		}
		list = append(list, atoll.Volume{Provider: "modal", Project: n.Project, Name: n.Name, Sandbox: n.Sandbox, InUse: used[key], Created: n.Created})
	}
	slices.SortFunc(list, func(a, b atoll.Volume) int { return strings.Compare(a.Project+"/"+a.Name, b.Project+"/"+b.Name) })
	return list, nil
}

// RemoveVolume implements atoll.VolumeStore.
func (p *Provider) RemoveVolume(ctx context.Context, project, name string) error {
	if p.opts.Ephemeral {
		return atoll.E("remove volume", name, atoll.ErrUnsupported, nil)
	}
	if project == "" {
		project = atoll.DefaultProject
	}
	if err := p.open(ctx, "remove volume"); err != nil {
		return err
	}
	key := volumeKey(project, name)
	if id, err := atoll.NormalizeID(strings.TrimPrefix(name, "data-")); err == nil && id != "" && volume.DataName(id) == name {
		key = dataKey(id)
	}
	var n volumeNote
	at, err := p.store.readValue(ctx, kindVolume, key, &n)
	if err != nil {
		return p.wrapError(ctx, "remove volume", name, err)
	}
	if at == nil || n.Project != project {
		return atoll.Errorf("remove volume", name, atoll.ErrNotExist, "no volume %q in project %q", name, project)
	}
	used, err := p.usedVolumes(ctx)
	if err != nil {
		return p.wrapError(ctx, "remove volume", name, err)
	}
	if used[key] {
		return atoll.Errorf("remove volume", name, atoll.ErrConflict, "a sandbox mounts it")
	}
	return p.wrapError(ctx, "remove volume", name, p.deleteVolume(ctx, key, ""))
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
