package docker

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
)

// names derives names and labels from the prefix of a server.
type names string

func (n names) sandboxName(id string) string    { return string(n) + "-session-" + id }
func (n names) caretakerName(id string) string  { return string(n) + "-caretaker-" + id }
func (n names) dataVolumeName(id string) string { return string(n) + "-data-" + id }
func (n names) volumeName(project, v string) string {
	return string(n) + "-volume-" + project + "." + v
}
func (n names) cacheVolumeName(project string) string { return string(n) + "-cache-" + project }
func (n names) onlineNetworkName() string             { return string(n) + "-online" }
func (n names) guestVolumeName(sum string) string     { return string(n) + "-guest-" + sum }
func (n names) installerName(sum, rand string) string {
	return string(n) + "-install-" + sum + "-" + rand
}

// markerName returns the name of a marker that is created now.
func (n names) markerName(id string, now time.Time) string {
	return string(n) + "-expires-" + id + "-" + strconv.FormatInt(now.UnixNano(), 10)
}

// markerTime returns when the marker with that name was created.
func (n names) markerTime(id, volume string) (made time.Time, ok bool) {
	text, ok := strings.CutPrefix(volume, string(n)+"-expires-"+id+"-")
	nanos, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(0, nanos), ok && err == nil
}

// The labels of containers, volumes and networks.
const (
	labelAtoll   = "atoll"         // "true"
	labelOwner   = "atoll.owner"   // the prefix of the server
	labelSession = "atoll.session" // the sandbox's id
	labelProject = "atoll.project"
	labelName    = "atoll.name"   // of a sandbox
	labelSpec    = "atoll.spec"   // of a sandbox, with the defaults filled in, as JSON
	labelImage   = "atoll.image"  // the image in use, with its digest if known
	labelVolume  = "atoll.volume" // of a named volume or a cache: its name
	labelUser    = "atoll.user"   // the user of the image
	labelPlain   = "atoll.plain"  // "true" if the sandbox has no guest

	labelInstalls = "atoll.installs" // "true" for containers that fill the guest's volume
)

// selectOwn returns a filter for the containers of this server's sandboxes.
func (n names) selectOwn() client.Filters {
	return client.Filters{}.Add("label", labelAtoll+"=true").Add("label", labelOwner+"="+string(n)).Add("label", labelSession)
}

// ownsContainer reports whether the container belongs to this server's sandbox with that id.
func (n names) ownsContainer(id string, c *container.InspectResponse) bool {
	return c.Config != nil && c.Config.Labels[labelSession] == id && c.Config.Labels[labelOwner] == string(n)
}

// installerLabels returns the labels of containers that fill the guest's volume.
func (n names) installerLabels() map[string]string {
	return map[string]string{labelAtoll: "true", labelOwner: string(n), labelInstalls: "true"}
}

// projectLabels returns the labels of every object that belongs to a project.
func (n names) projectLabels(project string) map[string]string {
	return map[string]string{labelAtoll: "true", labelOwner: string(n), labelProject: project}
}

// sandboxLabels returns the labels of a sandbox's container.
func (n names) sandboxLabels(spec *atoll.Spec, image, user string) (map[string]string, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	l := n.projectLabels(spec.Project)
	l[labelSession], l[labelSpec], l[labelImage], l[labelUser] = spec.ID, string(text), image, user
	if spec.Name != "" {
		l[labelName] = spec.Name
	}
	return l, nil
}
