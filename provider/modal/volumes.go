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

// A volumeNote is what is written down of a volume.
type volumeNote struct {
	Volume  string    `json:"volume"` // Modal's id
	Project string    `json:"project"`
	Name    string    `json:"name"`
	Sandbox string    `json:"sandbox,omitempty"` // whose data volume it is
	Made    string    `json:"made,omitempty"`    // tells with which sandbox's creation it was; "" if it was there before, or another sandbox has had it since
	Created time.Time `json:"created"`
}

// dataKey and volumeKey are the keys of volumes in the book, and their names at Modal but
// for what these begin with.
func dataKey(id string) string              { return "data-" + id }
func volumeKey(project, name string) string { return "volume-" + hashWords(project, name) }

func (n names) volumeName(key string) string { return string(n) + "-" + key }

// createVolumes makes the volumes of a sandbox that are not there.
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

// createVolume makes a volume, unless it is there.
func (c *creation) createVolume(ctx context.Context, key string, n volumeNote) error {
	n.Project, n.Made, n.Created = c.spec.Project, c.r.note.Made, time.Now().UTC()
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
		if !errors.Is(err, errWrittenElsewhere) { // else another sandbox of the project has just made it, or had it
			return err
		}
	}
}

// shareVolume has a volume that is there be one that stays when the creation fails that has made
// it: from now on there may be work of this sandbox in it.
func (c *creation) shareVolume(ctx context.Context, key string, before *revision) error {
	var have volumeNote
	if err := json.Unmarshal(before.Value, &have); err != nil {
		return err
	}
	if have.Project != c.spec.Project {
		return atoll.Errorf("create", c.spec.ID, atoll.ErrConflict, "what a sandbox with this id has left is of project %s: remove that, or use another id", have.Project)
	}
	if have.Made == "" || have.Made == c.r.note.Made {
		return nil
	}
	have.Made = ""
	_, err := c.p.store.writeNext(ctx, kindVolume, key, before, &have)
	return err
}

// makeVolume makes a volume, and writes it down as n after that page. Errors: errTurned.
func (c *creation) makeVolume(ctx context.Context, key string, before *revision, n volumeNote) error {
	id, made, err := c.p.makeVolume(ctx, key)
	if err != nil {
		return err
	}
	if n.Volume = id; !made {
		n.Made = ""
	}
	_, err = c.p.store.writeNext(ctx, kindVolume, key, before, &n)
	if made && !errors.Is(err, errWrittenElsewhere) {
		c.made = append(c.made, madeVolume{key, id})
	}
	return err
}

// makeVolume makes Modal's Volume for that key, whose id it returns, and whether it was not
// there before: the book forgets volumes that Modal keeps, and what is in those is not to go
// with a creation that fails. One whose making was answered only when it was asked for again
// counts as having been there: should the creation fail, an empty one is left.
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

// findVolume is Modal's Volume for that key.
func (p *Provider) findVolume(ctx context.Context, key string) (*sdk.Volume, error) {
	client, err := p.service.sdkClient()
	if err != nil {
		return nil, err
	}
	return client.Volumes.FromName(ctx, p.names.volumeName(key), nil)
}

// volumeMounts are the Volumes of a sandbox, by where they are mounted.
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

// checkDataVolume fails if a sandbox's data volume was deleted: an empty one in its place
// would look as if the work had been.
func (p *Provider) checkDataVolume(ctx context.Context, r *record) error {
	if !r.note.Volume {
		return nil
	}
	var notFound sdk.NotFoundError
	_, err := p.findVolume(ctx, dataKey(r.ID))
	if errors.As(err, &notFound) {
		return atoll.Errorf("start", r.ID, atoll.ErrUnavailable, "its data volume %s was deleted by somebody else: what was in it is lost; remove the sandbox, and make it again", p.names.volumeName(dataKey(r.ID)))
	}
	return err
}

// deleteVolumesOf deletes the volumes that were made with a sandbox whose creation has come to
// nothing.
func (p *Provider) deleteVolumesOf(ctx context.Context, r *record) error {
	pages, err := p.store.readAllLatest(ctx)
	for of, at := range pages {
		key, ok := strings.CutPrefix(of, kindVolume+"/")
		var n volumeNote
		if ok && !at.Deleted && json.Unmarshal(at.Value, &n) == nil && n.Made != "" && n.Made == r.note.Made {
			err = errors.Join(err, p.deleteVolume(ctx, key, r.note.Made))
		}
	}
	return err
}

// dropDataVolume deletes the data volume of a sandbox.
func (p *Provider) dropDataVolume(ctx context.Context, id string) error {
	return p.deleteVolume(ctx, dataKey(id), "")
}

// A madeVolume is one that was not there before, by its key in the book and Modal's id.
type madeVolume struct{ key, id string }

// undoCreate deletes it, also if it could not be written down, unless another sandbox has had it
// since. made is that of the creation.
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

// deleteVolume deletes a volume, unless a sandbox has it, or made is not "" and it is not that
// creation's alone.
func (p *Provider) deleteVolume(ctx context.Context, key, made string) error {
	var n volumeNote
	at, err := p.store.readValue(ctx, kindVolume, key, &n)
	if at == nil || err != nil || made != "" && made != n.Made {
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
	for gone := n.Volume; at != nil && n.Volume == gone; { // also if a creation has just shared it, which fails then
		if _, err = p.store.writeNext(ctx, kindVolume, key, at, nil); !errors.Is(err, errWrittenElsewhere) {
			return err
		}
		n = volumeNote{}
		if at, err = p.store.readValue(ctx, kindVolume, key, &n); err != nil {
			return err
		}
	}
	return nil // made anew by now
}

func (s *service) dropVolume(ctx context.Context, id string) error {
	_, err := s.pb.VolumeDelete(ctx, pb.VolumeDeleteRequest_builder{VolumeId: id}.Build())
	if isCode(err, codes.NotFound) {
		return nil
	}
	return err
}

// usedVolumes are the volumes that sandboxes have, running or not, by their keys.
func (p *Provider) usedVolumes(ctx context.Context) (map[string]bool, error) {
	pages, err := p.store.readAllLatest(ctx)
	used := map[string]bool{}
	for of, at := range pages {
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
	pages, err := p.store.readAllLatest(ctx)
	if err != nil {
		return nil, p.wrapError(ctx, "volumes", project, err)
	}
	var list []atoll.Volume
	for of, at := range pages {
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

// RemoveProject implements atoll.ProjectRemover: sandboxes and volumes.
func (p *Provider) RemoveProject(ctx context.Context, project string) error {
	return volume.RemoveProject(ctx, p, project)
}

var (
	_ atoll.VolumeStore    = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
)
