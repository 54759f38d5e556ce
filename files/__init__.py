"""Files and folders on shared disks: ownership, permissions, atomic writes. Standard library only."""
