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

// names makes the names of what belongs to a server, from its prefix.
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

// markerName is the name of a mark that is made now.
func (n names) markerName(id string, now time.Time) string {
	return string(n) + "-expires-" + id + "-" + strconv.FormatInt(now.UnixNano(), 10)
}

// markerTime is when the mark of that name was made.
func (n names) markerTime(id, volume string) (made time.Time, ok bool) {
	text, ok := strings.CutPrefix(volume, string(n)+"-expires-"+id+"-")
	nanos, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(0, nanos), ok && err == nil
}

// The labels of what Atoll makes.
const (
	labelAtoll   = "atoll"         // "true"
	labelOwner   = "atoll.owner"   // the prefix
	labelSession = "atoll.session" // the sandbox's id
	labelProject = "atoll.project"
	labelName    = "atoll.name"   // of a sandbox
	labelSpec    = "atoll.spec"   // of a sandbox, defaults filled in
	labelImage   = "atoll.image"  // in use, by its digest where there is one
	labelVolume  = "atoll.volume" // the name of a named volume, and of a cache
	labelUser    = "atoll.user"   // of the image
	labelPlain   = "atoll.plain"  // "true" for a sandbox without a guest

	labelInstalls = "atoll.installs" // "true" for what fills the volume of the guest
)

// selectOwn selects the containers of this server's sandboxes.
func (n names) selectOwn() client.Filters {
	return client.Filters{}.Add("label", labelAtoll+"=true").Add("label", labelOwner+"="+string(n)).Add("label", labelSession)
}

// ownsContainer reports whether a container is that of a sandbox of this server's.
func (n names) ownsContainer(id string, c *container.InspectResponse) bool {
	return c.Config != nil && c.Config.Labels[labelSession] == id && c.Config.Labels[labelOwner] == string(n)
}

// installerLabels are the labels of what fills the volume of the guest.
func (n names) installerLabels() map[string]string {
	return map[string]string{labelAtoll: "true", labelOwner: string(n), labelInstalls: "true"}
}

// projectLabels are those that everything of a project has.
func (n names) projectLabels(project string) map[string]string {
	return map[string]string{labelAtoll: "true", labelOwner: string(n), labelProject: project}
}

// sandboxLabels are those of a sandbox's container.
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
