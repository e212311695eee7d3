package gpuwait

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
)

// amdSource reads the files of the amdgpu kernel driver. It needs no library and no ROCm.
type amdSource struct {
	root  string
	mu    sync.Mutex
	known map[string]amdCard // by UUID; listing reads a dozen files a card, which is too much for every poll
}

// openAMD opens the source for AMD GPUs: memory from
// /sys/class/drm/card*/device/mem_info_vram_{total,used}, compute processes from /sys/class/kfd,
// graphics processes from the drm-* keys of /proc/*/fdinfo. root is "/" except in tests. Another
// user's fdinfo is not readable: such holders are not listed.
func openAMD(root string) (SourceCloser, error) {
	s := &amdSource{root: root}
	cards, err := s.cards()
	if err != nil {
		return nil, err
	}
	if len(cards) == 0 {
		return nil, fmt.Errorf("AMD: %w: %w: no %s", ErrCannotMeasure, errNotThere,
			s.path("sys/class/drm/card*/device/mem_info_vram_total"))
	}
	return s, nil
}

func (s *amdSource) Close() error { return nil }

func (s *amdSource) path(elem ...string) string {
	return filepath.Join(append([]string{s.root}, elem...)...)
}

type amdCard struct {
	Device
	dir    string // …/cardN/device
	pci    string // 0000:03:00.0
	kfd    string // the compute driver's gpu_id
	minor  int    // of the render node; -1 without one
	number int    // N of cardN
}

// cards lists the GPUs in ROCm's order (the compute driver's topology), those that it does not know
// after them, by card number.
func (s *amdSource) cards() ([]amdCard, error) {
	totals, err := filepath.Glob(s.path("sys/class/drm/card*/device/mem_info_vram_total"))
	if err != nil {
		return nil, err
	}
	nodes := s.topology()
	var cards []amdCard
	for _, total := range totals {
		dir := filepath.Dir(total)
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(dir)), "card"))
		if err != nil {
			continue // card0-HDMI-A-1
		}
		c := amdCard{dir: dir, number: n, minor: -1}
		c.Vendor = AMD
		c.Name = readLine(filepath.Join(dir, "product_name"))
		for line := range strings.Lines(readAll(filepath.Join(dir, "uevent"))) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PCI_SLOT_NAME="); ok {
				c.pci = v
			}
		}
		if render, _ := filepath.Glob(filepath.Join(dir, "drm/renderD*")); len(render) > 0 {
			if m, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(render[0]), "renderD")); err == nil {
				c.minor = m
			}
		}
		switch id := readLine(filepath.Join(dir, "unique_id")); {
		case id != "":
			c.UUID = "GPU-" + strings.ToLower(strings.TrimPrefix(id, "0x"))
		case c.pci != "":
			c.UUID = "PCI-" + c.pci // consumer boards have no unique_id; ROCm cannot select them by one either
		default:
			c.UUID = fmt.Sprintf("card%d", n)
		}
		cards = append(cards, c)
	}
	order := func(c amdCard) int {
		i := slices.IndexFunc(nodes, func(n kfdNode) bool { return c.minor >= 0 && n.minor == c.minor })
		if i < 0 {
			return len(nodes) + c.number
		}
		return i
	}
	sort.Slice(cards, func(i, j int) bool { return order(cards[i]) < order(cards[j]) })
	for i := range cards {
		cards[i].Index = i
		if o := order(cards[i]); o < len(nodes) {
			cards[i].kfd = nodes[o].id
		}
	}
	return cards, nil
}

type kfdNode struct {
	number, minor int
	id            string
}

func (s *amdSource) topology() []kfdNode {
	props, _ := filepath.Glob(s.path("sys/class/kfd/kfd/topology/nodes/*/properties"))
	var nodes []kfdNode
	for _, p := range props {
		dir := filepath.Dir(p)
		n, err := strconv.Atoi(filepath.Base(dir))
		id := readLine(filepath.Join(dir, "gpu_id"))
		if err != nil || id == "" || id == "0" { // 0 is a CPU node
			continue
		}
		node := kfdNode{number: n, minor: -1, id: id}
		for line := range strings.Lines(readAll(p)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == "drm_render_minor" {
				if m, err := strconv.Atoi(f[1]); err == nil && m > 0 {
					node.minor = m
				}
			}
		}
		nodes = append(nodes, node)
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].number < nodes[j].number })
	return nodes
}

func (s *amdSource) Devices() ([]Device, error) {
	cards, err := s.cards()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = map[string]amdCard{}
	out := make([]Device, len(cards))
	for i, c := range cards {
		out[i] = c.Device
		s.known[c.UUID] = c
	}
	return out, nil
}

func (s *amdSource) card(uuid string) (amdCard, error) {
	for _, again := range []bool{false, true} {
		if again {
			if _, err := s.Devices(); err != nil {
				return amdCard{}, err
			}
		}
		s.mu.Lock()
		c, ok := s.known[uuid]
		s.mu.Unlock()
		if ok {
			return c, nil
		}
	}
	return amdCard{}, fmt.Errorf("AMD: %w: %q", ErrNoDevice, uuid)
}

func (s *amdSource) Memory(uuid string) (Memory, error) {
	c, err := s.card(uuid)
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	if m.Total, err = readBytes(filepath.Join(c.dir, "mem_info_vram_total")); err != nil {
		return Memory{}, err
	}
	if m.Used, err = readBytes(filepath.Join(c.dir, "mem_info_vram_used")); err != nil {
		return Memory{}, err
	}
	m.WithReserve = true // firmware's share is in vram_used
	return checked(c.Device, m)
}

func readBytes(file string) (int64, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("AMD: %w: %w", ErrLost, err) // it was there when the card was listed
	}
	if err != nil {
		return 0, fmt.Errorf("AMD: %w: %w", ErrCannotMeasure, err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("AMD: %w: %s: %w", ErrCannotMeasure, file, err)
	}
	return n, nil
}

// Holders joins the compute driver's list with fdinfo. Newer kernels count compute memory in both,
// so the larger number counts.
func (s *amdSource) Holders(uuid string) ([]Holder, error) {
	c, err := s.card(uuid)
	if err != nil {
		return nil, err
	}
	byPID := map[int]Holder{}
	add := func(pid int, bytes int64) {
		if h, ok := byPID[pid]; !ok || bytes > h.Bytes {
			byPID[pid] = Holder{PID: pid, Bytes: bytes, Known: true}
		}
	}
	if c.kfd != "" {
		files, _ := filepath.Glob(s.path("sys/class/kfd/kfd/proc/*/vram_" + c.kfd))
		for _, f := range files {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if n, rerr := readBytes(f); err == nil && rerr == nil && n > 0 {
				add(pid, n)
			}
		}
	}
	procs, _ := filepath.Glob(s.path("proc/[0-9]*"))
	for _, p := range procs {
		pid, err := strconv.Atoi(filepath.Base(p))
		if n := fdinfoVRAM(p, c.pci); err == nil && n > 0 {
			add(pid, n)
		}
	}
	out := make([]Holder, 0, len(byPID))
	for _, h := range byPID {
		out = append(out, h)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].PID < out[j].PID })
	return out, nil
}

// fdinfoVRAM adds up a process's clients of one card. Duplicated descriptors show the same client
// id and count once (Documentation/gpu/drm-usage-stats.rst in the Linux sources).
func fdinfoVRAM(proc, pci string) int64 {
	fds, _ := filepath.Glob(filepath.Join(proc, "fdinfo/*"))
	clients := map[string]int64{}
	for _, fd := range fds {
		if target, err := os.Readlink(filepath.Join(proc, "fd", filepath.Base(fd))); err == nil &&
			!strings.HasPrefix(target, "/dev/dri/") {
			continue
		}
		keys := map[string]string{}
		for line := range strings.Lines(readAll(fd)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.HasPrefix(k, "drm-") {
				keys[k] = strings.TrimSpace(v)
			}
		}
		if keys["drm-driver"] != "amdgpu" || keys["drm-pdev"] != pci {
			continue
		}
		for _, k := range []string{"drm-resident-vram", "drm-memory-vram", "drm-total-vram"} {
			if n, ok := drmSize(keys[k]); ok {
				clients[keys["drm-client-id"]] = max(clients[keys["drm-client-id"]], n)
				break
			}
		}
	}
	var sum int64
	for _, n := range clients {
		sum += n
	}
	return sum
}

func drmSize(s string) (int64, bool) {
	f := strings.Fields(s)
	if len(f) == 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(f[0], 10, 64)
	if err != nil {
		return 0, false
	}
	if len(f) > 1 {
		switch f[1] {
		case "KiB":
			n <<= 10
		case "MiB":
			n <<= 20
		}
	}
	return n, true
}

func readAll(file string) string {
	b, _ := os.ReadFile(file)
	return string(b)
}

func readLine(file string) string { return strings.TrimSpace(readAll(file)) }
