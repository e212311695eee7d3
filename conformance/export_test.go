package conformance

import "strings"

// PropertyNames lists the properties that mutants of the bundled engine must prove. It does not
// speak Ollama's API: defects of a fake prove these.
func PropertyNames() (names []string) {
	for _, p := range properties {
		if !strings.HasPrefix(p.name, "ollama/") {
			names = append(names, p.name)
		}
	}
	return names
}
