package kubernetes

import authorizationv1 "k8s.io/api/authorization/v1"

// OnStep sets a function that is called before each step of a creation and of a start.
func OnStep(opts *Options, step func(name string) error) { opts.step = step }

// Needed returns the permissions that the account needs, as "VERB GROUP/RESOURCE".
func Needed(perProject bool) (list []string) {
	all := basePermissions
	if perProject {
		all = append(all[:len(all):len(all)], projectPermissions...)
	}
	return listed(all)
}

// NeededAgents returns the additional permissions for agent-sandbox.
func NeededAgents() []string { return listed(agentPermissions) }

func listed(all []authorizationv1.ResourceAttributes) (list []string) {
	for _, a := range all {
		what := a.Verb + " " + a.Group + "/" + a.Resource
		if a.Subresource != "" {
			what += "/" + a.Subresource
		}
		list = append(list, what)
	}
	return list
}
