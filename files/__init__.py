"""Files and folders on shared disks: whose they are, who may read them, complete or absent. Standard library only."""
